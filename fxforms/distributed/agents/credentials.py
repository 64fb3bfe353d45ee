"""Who may take part in a world on gRPC: mutual TLS, or nobody but this machine."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

import grpc

from fxforms.distributed.options import Options
from fxforms.errors import ArgumentError


@dataclass(frozen=True, slots=True)
class Credentials:
    """What a worker shows, and what it asks of others; both None without TLS."""

    server: grpc.ServerCredentials | None
    channel: grpc.ChannelCredentials | None


def load(options: Options, *hosts: str) -> Credentials:
    """The credentials that ``options`` name, for a worker that uses the addresses ``hosts``.

    Raises:
        ArgumentError: there are no certificates, and the addresses are not all loopback.
    """
    paths = {"certificate": options.certificate, "key": options.key, "ca": options.ca}
    if options.insecure:
        open_hosts = [host for host in hosts if not _is_loopback(host)]
        if open_hosts or any(paths.values()):
            raise ArgumentError(
                f"init_rpc(options={{'insecure': True}}): hosts {open_hosts}, files {paths}. "
                "Without TLS a worker takes loopback addresses only, and no certificates. Drop "
                "'insecure', or set MASTER_ADDR and 'host' to 127.0.0.1."
            )
        return Credentials(None, None)
    if not all(paths.values()):
        raise ArgumentError(
            f"init_rpc(agent='grpc'): of {paths} some are missing. Give the paths of this worker's "
            "certificate, its key, and the CA that signed the certificates of all workers, as PEM "
            "files; or 'insecure': True on loopback."
        )
    certificate, key, ca = (_read(name, str(path)) for name, path in paths.items())
    return Credentials(
        grpc.ssl_server_credentials(
            [(key, certificate)], root_certificates=ca, require_client_auth=True
        ),
        grpc.ssl_channel_credentials(ca, key, certificate),
    )


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ArgumentError(f"init_rpc(options=...): {name}={path!r}: {error}.") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
