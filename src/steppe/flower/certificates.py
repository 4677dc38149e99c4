"""Certificates and node keys for a trial: a private CA, the SuperLink's certificate, one key pair per node.

In production, nodes create their keys themselves (`ssh-keygen -t ecdsa -b 384`) and share only the public half.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

DAYS = 365


def write_certificates(folder: Path, hosts: list[str]) -> None:
    """Write ca.crt, server.crt and server.key; the CA's private key is used once and not stored."""
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    ca_name = _name("Steppe trial CA")
    ca = (_begin(ca_name, ca_name, ca_key.public_key()).add_extension(x509.BasicConstraints(True, 0), critical=True)
          .add_extension(_make_usage(signs=True), critical=True)
          .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
          .sign(ca_key, hashes.SHA384()))  # fmt: skip
    certificate = (
        _begin(_name(hosts[0][:64]), ca_name, key.public_key())
        .add_extension(x509.BasicConstraints(False, None), critical=True)
        .add_extension(_make_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_make_alternative(h) for h in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    (folder / "ca.crt").write_bytes(ca.public_bytes(ser.Encoding.PEM))
    (folder / "server.crt").write_bytes(certificate.public_bytes(ser.Encoding.PEM))
    _write_secret(
        folder / "server.key", key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
    )


def write_node_key(folder: Path) -> None:
    """Write key and key.pub, as ssh-keygen would."""
    folder.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    _write_secret(folder / "key", key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.OpenSSH, ser.NoEncryption()))
    public = key.public_key().public_bytes(ser.Encoding.OpenSSH, ser.PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def _write_secret(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begin(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
            .serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=DAYS)))  # fmt: skip


def _make_usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(digital_signature=True, content_commitment=False, key_encipherment=False,
                         data_encipherment=False, key_agreement=False, key_cert_sign=signs, crl_sign=signs,
                         encipher_only=False, decipher_only=False)  # fmt: skip


def _make_alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
