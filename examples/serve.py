"""A saved result behind HTTP, with dynamic batching over the sizes that it was optimized for.

    taso-py optimize examples/serve.py:model --sizes 2x256 --sizes 4x256 --sizes 8x256 --output served
    python examples/serve.py served --port 8000
    python examples/serve.py served --requests 2000 --clients 16

Each request posts a row of features, as a JSON list, to ``http://localhost:8000``. Rows that arrive while others are
computed wait, and are computed together then: by the smallest size that holds them, filled up with zeros. With
``--requests`` the program asks itself instead, the result first and then the original model, and prints throughput and
latencies of both.
"""

import argparse
import asyncio
import http.client
import json
import multiprocessing
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from statistics import quantiles

import torch
import uvicorn
from fastapi import FastAPI, HTTPException
from torch import Tensor, nn

import taso_py

FEATURES = 256


def model() -> tuple[nn.Module, tuple[Tensor]]:
    """Return the arguments of ``taso-py optimize``: a scorer of rows of features, and an example."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10))
    return layers.eval(), (torch.randn(1, FEATURES),)


class Batcher:
    """Computes rows of several requests together."""

    def __init__(self, module: Callable[[Tensor], Tensor], sizes: Sequence[int]) -> None:
        self._module, self._sizes = module, sorted(sizes)
        self._waiting: asyncio.Queue[tuple[Tensor, asyncio.Future[list[float]]]] = asyncio.Queue()

    async def answer(self, row: Tensor) -> list[float]:
        """Return the scores of one row, which may be computed along with others."""
        future: asyncio.Future[list[float]] = asyncio.get_running_loop().create_future()
        await self._waiting.put((row, future))
        return await future

    async def run(self) -> None:
        """Compute whatever is waiting, again and again."""
        loop = asyncio.get_running_loop()
        # One thread, since the module itself uses all cores.
        with ThreadPoolExecutor(1) as pool:
            while True:
                requests = [await self._waiting.get()]
                while len(requests) < self._sizes[-1] and not self._waiting.empty():
                    requests.append(self._waiting.get_nowait())
                try:
                    scores = await loop.run_in_executor(pool, self._compute, [row for row, _ in requests])
                except Exception as error:  # every request learns of it, and the next ones are computed
                    for _, future in requests:
                        future.set_exception(error)
                    continue
                for (_, future), score in zip(requests, scores, strict=True):
                    if not future.cancelled():
                        future.set_result(score)

    def _compute(self, rows: Sequence[Tensor]) -> list[list[float]]:
        size = next(size for size in self._sizes if size >= len(rows))
        batch = torch.zeros(size, FEATURES)
        torch.stack(list(rows), out=batch[: len(rows)])
        with torch.no_grad():
            return self._module(batch)[: len(rows)].tolist()


def application(module: Callable[[Tensor], Tensor], sizes: Sequence[int]) -> FastAPI:
    """Return the server's application."""
    batcher = Batcher(module, sizes)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        running = asyncio.create_task(batcher.run())
        yield
        running.cancel()

    app = FastAPI(lifespan=lifespan)

    @app.post("/")
    async def score(row: list[float]) -> list[float]:
        if len(row) != FEATURES:
            raise HTTPException(400, f"a row has {FEATURES} numbers, not {len(row)}")
        return await batcher.answer(torch.tensor(row))

    return app


@contextmanager
def serving(module: Callable[[Tensor], Tensor], sizes: Sequence[int], port: int) -> Generator[int]:
    """Serve in another thread while the block runs; the value is the port."""
    server = uvicorn.Server(uvicorn.Config(application(module, sizes), port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    if not server.started:
        raise SystemExit(f"port {port} cannot be used; choose another --port")
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def ask(port: int, requests: int) -> list[float]:
    """Post random rows one after the other; return the seconds that each answer took."""
    connection = http.client.HTTPConnection("localhost", port)
    rows = torch.randn(16, FEATURES).tolist()
    times: list[float] = []
    for number in range(requests):
        body = json.dumps(rows[number % len(rows)])
        start = time.perf_counter()
        connection.request("POST", "/", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        response.read()
        times.append(time.perf_counter() - start)
        if response.status != http.HTTPStatus.OK:
            raise SystemExit(f"the server answered {response.status}")
    return times


def ask_together(port: int, requests: int, clients: int) -> tuple[float, list[float]]:
    """Ask by several clients at once; return the seconds of all, and those that each answer took."""
    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        found = list(pool.map(partial(ask, port), [requests // clients] * clients))
    return time.perf_counter() - start, [seconds for times in found for seconds in times]


def measure(process: Executor, port: int, requests: int, clients: int) -> str:
    """Return throughput and latencies as text; the clients are in a process of their own."""
    process.submit(ask_together, port, 4 * clients, clients).result()
    seconds, times = process.submit(ask_together, port, requests, clients).result()
    shares = [share * 1e3 for share in quantiles(times, n=100)]
    return f"{len(times) / seconds:7.0f} rows/s, median {shares[49]:.2f} ms, 99 of 100 within {shares[98]:.2f} ms"


def main() -> None:
    """Load a folder and serve it."""
    parser = argparse.ArgumentParser(description="Serve a saved result, with dynamic batching.")
    parser.add_argument("folder", help="what `taso-py optimize ... --output` wrote")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free")
    parser.add_argument("--requests", metavar="N", type=int, default=0, help="ask that many times, then end")
    parser.add_argument("--clients", metavar="N", type=int, default=16, help="how many ask at once")
    arguments = parser.parse_args()

    result = taso_py.load(arguments.folder)
    # A result of one size has no list of them; it is the example's, one row.
    sizes = [int(size.partition("x")[0]) for size in getattr(result, "sizes", ["1"])]
    if not arguments.requests:
        with serving(result, sizes, arguments.port) as port:
            print(f"serving {arguments.folder} on http://localhost:{port}, up to {max(sizes)} rows at once")
            threading.Event().wait()
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        for name, module in (("result", result), ("original", model()[0])):
            with serving(module, sizes, arguments.port) as port:
                print(f"{name:<9}{measure(process, port, arguments.requests, arguments.clients)}")


if __name__ == "__main__":
    main()
