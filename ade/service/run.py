"""`ade serve` without its command line: load a model and serve it, in this process or in several."""

import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from ade.devices import cores
from ade.service.access import Access, hosts_of, read_keys
from ade.service.app import create_app
from ade.service.logs import LogFormat, configure_logs
from ade.service.model import ServedModel
from ade.service.server import serve
from ade.service.workers import Supervisor, reload_all
from ade.settings import ServiceSettings


@dataclass(frozen=True)
class ServeOptions:
    """What is served, to whom, and by how many processes."""

    model: Path
    settings: ServiceSettings = field(default_factory=ServiceSettings)
    api_key_file: Path | None = None
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    inspect: bool = True
    workers: int = 1
    log_format: LogFormat = "text"
    access_log: bool = False


def run(options: ServeOptions, bound: socket.socket, on_ready: Callable[[], None]) -> None:
    """Serve a model on a bound socket until SIGINT or SIGTERM."""
    if options.workers == 1:
        serve_model(options, bound, on_ready)
    else:
        Supervisor(partial(serve_model, options), options.workers, bound, on_ready).run()


def serve_model(options: ServeOptions, bound: socket.socket, on_ready: Callable[[], None]) -> None:
    """Load a model and serve it in this process."""
    if options.log_format == "json" or options.access_log:
        configure_logs(options.log_format, options.access_log)
    keys = read_keys(options.api_key_file) if options.api_key_file else ()
    access = Access(keys, hosts_of(bound.getsockname()[0], options.allowed_hosts), options.cors_origins)
    threads = 0 if options.workers == 1 else max(1, cores() // options.workers)
    load = partial(ServedModel.load, options.model, threads, options.inspect)
    app = create_app(load(), options.settings, access, load)
    if options.workers > 1:
        app.state.service.on_reload = reload_all
    serve(app, bound, on_ready, options.settings)
