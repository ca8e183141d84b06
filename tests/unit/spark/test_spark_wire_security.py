"""Tests signatures as a server checks them, and TLS with valid and invalid certificates."""

from __future__ import annotations

import hashlib
import hmac
import socket
import ssl
import subprocess
import threading
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from tandemmq.errors import BrokerUnreachable, ConfigError
from tandemmq.protocol.codes import RequestCode
from tandemmq.protocol.command import Command
from tandemmq.protocol.frame import FrameDecoder, encode_frame
from tandemmq.protocol.requests.consume import GetMaxOffsetRequest, GetMaxOffsetResponse
from tandemmq.spark.options import parse_options
from tandemmq.spark.wire import ConnectionPool, Security


def _ask() -> Command:
    header = GetMaxOffsetRequest(topic="T", queue_id=1)
    return Command.request(RequestCode.GET_MAX_OFFSET, header, body=b"body")


def test_a_request_is_signed_over_all_values_in_the_order_of_their_names() -> None:
    command = _ask()
    Security(access_key="user", secret_key="secret", security_token="t").sign(command)
    Security(access_key="user", secret_key="secret", security_token="t").sign(command)
    (arrived,) = FrameDecoder().feed(encode_frame(command))
    fields = dict(arrived.fields)
    signature = fields.pop("Signature")
    assert (fields["AccessKey"], fields["SecurityToken"]) == ("user", "t")
    content = "".join(value for _, value in sorted(fields.items())).encode() + b"body"
    assert signature == b64encode(hmac.new(b"secret", content, hashlib.sha1).digest()).decode()


def test_options_keep_secrets_to_themselves() -> None:
    raw = {"nameserver": "a:1", "topic": "T", "accesskey": "user", "secretkey": "hidden", "tlsEnable": "true"}
    options = parse_options(raw, is_streaming=True)
    assert options.security == Security(access_key="user", secret_key="hidden", is_tls=True)
    assert "hidden" not in repr(options)
    token = parse_options({**raw, "securitytoken": "passing"}, is_streaming=True).security
    assert token.security_token == "passing"
    assert "passing" not in repr(token)
    with pytest.raises(ConfigError, match="securityToken needs accessKey"):
        parse_options({"nameserver": "a:1", "topic": "T", "securityToken": "t"}, is_streaming=True)
    with pytest.raises(ConfigError, match=r"tls\.key needs tls\.certificate"):
        parse_options({**raw, "tls.ca": "x", "tls.key": "y"}, is_streaming=True)
    with pytest.raises(ConfigError, match="belong together"):
        parse_options({**raw, "secretkey": ""}, is_streaming=True)
    with pytest.raises(ConfigError, match=r"tls\.ca needs tls=true"):
        parse_options({"nameserver": "a:1", "topic": "T", "tls.ca": "x"}, is_streaming=True)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Returns a self-signed certificate for 127.0.0.1, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    command += ["-nodes", "-days", "2", "-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


@pytest.fixture(params=["requests no certificate"])
def server(certificate: tuple[Path, Path], request: pytest.FixtureRequest) -> Iterator[str]:
    """Yields the address of a TLS server that answers every request with the offset 7; with "asks all", it
    requires a client certificate that it trusts.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    if request.param == "asks all":
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificate[0])
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    plain, _ = listener.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(plain, server_side=True) as connection:
                        _answer_all(connection)
                except OSError:
                    plain.close()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def _answer_all(connection: ssl.SSLSocket) -> None:
    decoder = FrameDecoder()
    while data := connection.recv(65_536):
        for request in decoder.feed(data):
            connection.sendall(encode_frame(request.reply(0, GetMaxOffsetResponse(offset=7))))


def test_tls_connections_are_checked_pooled_and_kept_apart(
    server: str, certificate: tuple[Path, Path]
) -> None:
    pool = ConnectionPool()
    trusting = Security(is_tls=True, ca_path=str(certificate[0]))
    for _ in range(2):
        with pool.borrow(server, trusting) as connection:
            assert connection.request(_ask(), 5.0).decode(GetMaxOffsetResponse).offset == 7
    assert [len(idle) for idle in pool._idle.values()] == [1]
    pool.close()
    with (
        pytest.raises(BrokerUnreachable, match="CERTIFICATE_VERIFY_FAILED"),
        pool.borrow(server, Security(is_tls=True)),
    ):
        pass
    with pool.borrow(server, Security(is_tls=True, verifies_peer=False)) as connection:
        assert connection.request(_ask(), 5.0).code == 0
    pool.close()


def _tls(**values: str) -> Security:
    """Returns the security settings parsed from options."""
    raw = {"nameserver": "a:1", "topic": "T", "tls": "true", **values}
    return parse_options(raw, is_streaming=False).security


@pytest.mark.parametrize("server", ["asks all"], indirect=True)
def test_a_certificate_is_shown_with_the_key_of_its_own_file_or_of_another(
    server: str, certificate: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = certificate
    both = tmp_path / "both.pem"
    both.write_bytes(cert.read_bytes() + key.read_bytes())
    for values in ({"tls.certificate": str(cert), "tls.key": str(key)}, {"tls.certificate": str(both)}):
        pool = ConnectionPool()
        with pool.borrow(server, _tls(**{"tls.verify": "false", **values})) as connection:
            assert connection.request(_ask(), 5.0).decode(GetMaxOffsetResponse).offset == 7
        pool.close()
    pool = ConnectionPool()
    with (
        pytest.raises(BrokerUnreachable),
        pool.borrow(server, _tls(**{"tls.verify": "false"})) as connection,
    ):
        connection.request(_ask(), 5.0)
    pool.close()


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"tls.ca": "/none/ca.pem"}, "tls.ca: /none/ca.pem cannot be used here"),
        ({"tls.certificate": "/none/c.pem"}, "/none/c.pem with the key in the same file cannot be used"),
        ({"tls.certificate": "CERT", "tls.key": "/none/k"}, "with the key in /none/k cannot be used here"),
    ],
)
def test_a_file_that_is_not_there_is_named_and_not_taken_for_a_broker_that_is_away(
    server: str, certificate: tuple[Path, Path], values: dict[str, str], said: str
) -> None:
    pool = ConnectionPool()
    named = {name: value.replace("CERT", str(certificate[0])) for name, value in values.items()}
    with pytest.raises(ConfigError, match=said), pool.borrow(server, _tls(**named)):
        pass
    pool.close()
