"""A saved result behind HTTP: load the folder, answer requests, report the latencies.

    taso-py optimize examples/serve.py:model --output served
    python examples/serve.py served --port 8000

Each request posts a JSON list of rows to ``http://localhost:8000``. With ``--requests N`` the program asks itself that
many times instead, prints the latencies and ends.
"""

import argparse
import json
import threading
import time
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from statistics import quantiles

import torch
from torch import Tensor, nn

import taso_py

FEATURES = 256


def model() -> tuple[nn.Module, tuple[Tensor]]:
    """Return the arguments of ``taso-py optimize``: a scorer of rows of features, and an example."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(FEATURES, 512), nn.GELU(), nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 10))
    return layers.eval(), (torch.randn(1, FEATURES),)


def server(module: Callable[[Tensor], Tensor], port: int, seconds: list[float]) -> HTTPServer:
    """Return a server that answers one request after the other and records the module's time for each."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                rows = torch.tensor(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                start = time.perf_counter()
                with torch.no_grad():
                    answer = module(rows)
                seconds.append(time.perf_counter() - start)
            except Exception as error:  # no JSON, or rows of another shape than the result was made for
                self.respond(400, {"error": f"{type(error).__name__}: {error}"})
            else:
                self.respond(200, answer.tolist())

        def respond(self, status: int, document: object) -> None:
            body = json.dumps(document).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            del format, args  # a line per request would take longer than the request

    return HTTPServer(("localhost", port), Handler)


def ask(port: int, rows: list[list[float]]) -> list[list[float]]:
    """Post rows to the server and return its answer, as a client does."""
    body = json.dumps(rows).encode()
    with urllib.request.urlopen(f"http://localhost:{port}", body) as response:
        return json.load(response)


def measure(port: int, requests: int) -> list[float]:
    """Ask this many times; return the seconds that each answer took."""
    times: list[float] = []
    for _ in range(requests):
        row = torch.randn(1, FEATURES).tolist()
        start = time.perf_counter()
        ask(port, row)
        times.append(time.perf_counter() - start)
    return times


def main() -> None:
    """Load a folder and serve it."""
    parser = argparse.ArgumentParser(description="Serve a saved result.")
    parser.add_argument("folder", help="what `taso-py optimize ... --output` wrote")
    parser.add_argument("--port", type=int, default=8000, help="0 takes any that is free")
    parser.add_argument("--requests", metavar="N", type=int, default=0, help="ask that many times, then end")
    arguments = parser.parse_args()

    seconds: list[float] = []
    with server(taso_py.load(arguments.folder), arguments.port, seconds) as serving:
        print(f"serving {arguments.folder} on http://localhost:{serving.server_port}")
        if not arguments.requests:
            serving.serve_forever()
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        whole = measure(serving.server_port, arguments.requests)
        serving.shutdown()
    for name, times in (("request", whole), ("module", seconds)):
        shares = quantiles(times, n=100)
        print(f"{name:<8} median {shares[49] * 1e3:.3f} ms, 99 of 100 within {shares[98] * 1e3:.3f} ms")


if __name__ == "__main__":
    main()
