"""Runs the application: the address that it listens on, the token, and the end by Ctrl-C."""

import gc
import ipaddress
import os
import secrets
import signal
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec
import uvicorn

from hpcprof.common.errors import UsageError
from hpcprof.serve.app import serve_store
from hpcprof.serve.connections import Connections, TimedProtocol
from hpcprof.serve.guard import LOCAL_NAMES, Access, all_names
from hpcprof.serve.log import limit_logs

_BACKLOG = 128
_IDLE_SECONDS = 10
_SHUTDOWN_SECONDS = 2
_MAX_HEADER_BYTES = 32 * 1024
_TOKEN_BYTES = 32
_GC_THRESHOLD = 1000
"""New objects after which garbage is collected."""


class Serving(msgspec.Struct, frozen=True):
    """The address and settings under which the application is reached."""

    host: str = "127.0.0.1"
    port: int = 0
    """0 chooses a free one."""
    names: Sequence[str] = ()
    """More names by which browsers may reach it, as behind a proxy."""
    token: bool = False
    """True if a token is required on loopback too; elsewhere it always is."""
    accept: bool = False
    """True for a hub, to which runs can be pushed."""
    user_header: str = ""
    """Header in which a hub's reverse proxy names the user; empty for none."""
    proxy: str = ""
    """The address of that proxy; empty where it comes by ``unix``."""
    unix: Path | None = None
    """A Unix socket to listen on instead of host and port."""
    https: bool = False
    """True if browsers reach it by https."""


def serve(serving: Serving, runs_dir: Path, db: str | None, announce: Callable[[str], None]) -> None:
    """Serve results until Ctrl-C or SIGTERM; ``announce`` gets the address, with the token if it has one."""
    with _listening_socket(serving) as listening:
        access = access_to(serving, listening)
        if serving.accept:
            from hpcprof.serve.hub import Proxy, make_hub

            access = replace(access, token=None)  # grants take its place
            proxy = Proxy(serving.user_header, serving.proxy) if serving.user_header else None
            app = make_hub(runs_dir, db, access, proxy)
        else:
            app = serve_store(runs_dir, db, access)
        connections = Connections()
        config = uvicorn.Config(
            app,
            http=partial(TimedProtocol, connections),  # type: ignore[arg-type]  # it is only called
            ws="none",
            loop="asyncio",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            backlog=connections.waiting,
            timeout_keep_alive=_IDLE_SECONDS,
            timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        )
        limit_logs()
        # Commands collect garbage rarely, but connections that break off leave cycles with their answers.
        gc.freeze()
        gc.set_threshold(_GC_THRESHOLD)
        query = f"?token={access.token}" if access.token else ""
        where = f"{_in_address(serving.host)}:{access.port}" if serving.unix is None else "localhost"
        announce(f"http://{where}/{query}{f' by {serving.unix}' if serving.unix else ''}")
        # uvicorn ends on a signal, and then sends the signal again for others to see.
        ended = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with suppress(KeyboardInterrupt):
                uvicorn.Server(config).run(sockets=[listening])
        finally:
            signal.signal(signal.SIGTERM, ended)


@contextmanager
def _listening_socket(serving: Serving) -> Iterator[socket.socket]:
    if serving.unix is None:
        with listen(serving.host, serving.port) as listening:
            yield listening
        return
    with listen_on_file(serving.unix) as listening:
        inode = serving.unix.stat().st_ino
        try:
            yield listening
        finally:
            with suppress(OSError):
                if serving.unix.stat().st_ino == inode:
                    serving.unix.unlink()


def listen_on_file(path: Path) -> socket.socket:
    """Return a listening Unix socket for this user alone; a leftover of a killed server is removed."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as other:
                if other.connect_ex(str(path)) == 0:
                    raise UsageError(f"--unix {path}: a server listens there already.")
            path.unlink()
        listening.bind(str(path))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        reason = error.strerror or "the path is too long"
        raise UsageError(f"--unix {path}: cannot listen there: {reason}.") from None
    except UsageError:
        listening.close()
        raise
    finally:
        os.umask(before)
    return listening


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on an address."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not a name"
        raise UsageError(f"--host {host}: {reason}; give a name or an address of this machine.") from None
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise UsageError(
            f"cannot listen on {host}, port {port}: {error.strerror}; --port 0 takes a free port."
        ) from None
    return listening


def access_to(serving: Serving, listening: socket.socket) -> Access:
    """Return the access to the application on a socket, with a new token if one is required."""
    names = [serving.host, *LOCAL_NAMES, *serving.names]
    if serving.unix is not None:
        token = secrets.token_urlsafe(_TOKEN_BYTES) if serving.token else None
        return Access(hosts=all_names(names), token=token, https=serving.https)
    address = ipaddress.ip_address(listening.getsockname()[0].partition("%")[0])
    if not address.is_loopback:
        names += [str(address), socket.gethostname(), socket.getfqdn()]
    required = serving.token or not address.is_loopback
    return Access(
        hosts=all_names(names),
        addresses=address.is_unspecified,
        token=secrets.token_urlsafe(_TOKEN_BYTES) if required else None,
        port=listening.getsockname()[1],
        https=serving.https,
    )


def _in_address(host: str) -> str:
    with suppress(ValueError):
        address = ipaddress.ip_address(host)
        if address.is_unspecified:
            return socket.gethostname()
        return f"[{host}]" if address.version > 4 else host
    return host
