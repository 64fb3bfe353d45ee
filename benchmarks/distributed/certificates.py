"""Certificates for the gRPC agent, made anew for each run, of tests too."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """A certificate authority, with its own certificate in a file."""

    folder: Path
    name: str
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @property
    def path(self) -> str:
        return str(self.folder / f"{self.name}.pem")

    def issue(self, name: str, days: int = 1) -> dict[str, str]:
        """The options of a worker with a certificate of this authority; expired if days < 0."""
        key = ec.generate_private_key(ec.SECP256R1())
        hosts = [x509.IPAddress(ipaddress.ip_address("127.0.0.1")), x509.DNSName("localhost")]
        builder = _builder(name, self.certificate.subject, key.public_key(), days)
        certificate = builder.add_extension(
            x509.SubjectAlternativeName(hosts), critical=False
        ).sign(self.key, hashes.SHA256())
        (self.folder / f"{name}.pem").write_bytes(_pem(certificate))
        (self.folder / f"{name}.key").write_bytes(_secret(key))
        return {
            "certificate": str(self.folder / f"{name}.pem"),
            "key": str(self.folder / f"{name}.key"),
            "ca": self.path,
        }


def authority(folder: Path, name: str) -> Authority:
    """A new certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _builder(name, subject, key.public_key(), 1)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.pem").write_bytes(_pem(certificate))
    return Authority(folder, name, key, certificate)


def _builder(
    name: str, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    end = datetime.datetime.now(datetime.UTC) + days * _DAY
    return (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - 30 * _DAY)
        .not_valid_after(end)
    )


def _name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _secret(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
