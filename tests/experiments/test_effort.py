"""Effort against speed: what is known before a run, and a figure of whatever has been measured."""

from __future__ import annotations

from matplotlib.figure import Figure

from experiments import effort


def test_only_the_runs_that_say_so_know_anything() -> None:
    runs = list(effort._optimizations(0, quick=False))
    names = [name for name, _, _ in runs]
    caches = [cache for _, _, cache in runs]
    first = {cache: names[caches.index(cache)] for cache in caches}
    later = [name for name, _, cache in runs if first[cache] != name]
    assert later == [effort.KNOWN, effort.AGAIN]
    assert {name: options.cache for name, options, _ in runs if name in later} == {
        effort.KNOWN: False,  # latencies without winners
        effort.AGAIN: True,
    }
    assert {first[cache] for name, _, cache in runs if name in later} == {effort.NORMAL}


def test_a_figure_has_a_panel_for_each_model_and_shows_what_there_is() -> None:
    ways = ("quick", "normal", "thorough", "auto, quick", "auto", *effort.COMPILERS, *effort.SESSIONS)
    whole = {"model": "small", **dict.fromkeys(ways, 2.0), **{f"{way}_s": 10.0 for way in ways}}
    partial = {"model": "larger", "quick": 1.5, "quick_s": 3.0}
    figure = Figure()
    effort.EXPERIMENT.plot(figure, [whole, partial])
    assert [panel.get_title() for panel in figure.axes if panel.get_visible()] == ["small", "larger"]
    shown = [{text.get_text() for text in panel.texts} for panel in figure.axes]
    assert shown == [set(ways), {"quick"}]
    many = Figure()
    effort.EXPERIMENT.plot(many, [partial] * 4)
    assert len([panel for panel in many.axes if panel.get_visible()]) == 4
    assert len(many.axes) == 6
