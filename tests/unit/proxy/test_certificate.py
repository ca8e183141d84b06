"""The self-signed certificate of a proxy: made once, kept private, refused when broken."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509

from sim.manual_clock import ManualClock
from tandemmq.errors import ConfigError
from tandemmq.proxy.certificate import FILE_NAME, ensure_certificate
from tandemmq.runtime.disk import RealDisk

CLOCK = ManualClock()


def make(folder: Path, *hosts: str) -> Path:
    return ensure_certificate(folder, hosts, disk=RealDisk(), clock=CLOCK)


def test_a_certificate_names_this_machine_and_is_valid_for_ten_years(tmp_path: Path) -> None:
    path = make(tmp_path / "new", "proxy-1.example", "10.0.0.7")
    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["proxy-1.example", "localhost"]
    addresses = [ip_address(text) for text in ("10.0.0.7", "127.0.0.1", "::1")]
    assert names.get_values_for_type(x509.IPAddress) == addresses
    now = datetime.fromtimestamp(CLOCK.now_ms() / 1000, UTC)
    assert certificate.not_valid_before_utc < now
    assert certificate.not_valid_after_utc > now + timedelta(days=3649)
    assert path.stat().st_mode & 0o777 == 0o600
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(path, path)


def test_a_certificate_is_made_once(tmp_path: Path) -> None:
    first = make(tmp_path).read_bytes()
    assert make(tmp_path, "other").read_bytes() == first


def test_a_host_that_no_certificate_can_hold_is_left_out(tmp_path: Path) -> None:
    path = make(tmp_path, "x" * 100, "größe", "")
    names = x509.load_pem_x509_certificate(path.read_bytes()).extensions
    found = names.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(x509.DNSName)
    assert found == ["x" * 100, "localhost"]


@pytest.mark.parametrize("content", [b"", b"rubbish", b"half", b"mixed"])
def test_a_broken_file_is_named(tmp_path: Path, content: bytes) -> None:
    path = make(tmp_path)
    other = make(tmp_path / "other").read_bytes()
    good = path.read_bytes()
    key_size = good.index(b"-----BEGIN CERTIFICATE")
    changed = {b"half": good[:key_size], b"mixed": good[:key_size] + other[key_size:]}.get(content, content)
    path.write_bytes(changed)
    with pytest.raises(ConfigError, match=FILE_NAME):
        make(tmp_path)
    assert path.read_bytes() == changed


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigError, match=FILE_NAME):
        make(tmp_path / "file")
