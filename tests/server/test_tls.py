"""TLS: server and client certificates, reloaded when their files change."""

import asyncio
import subprocess
import sys
from pathlib import Path

import grpc
import pytest
import trustme

from client import health
from client.aio import AsyncClient
from client.channel import Security
from client.errors import TriuneError
from server.app import RunningServer
from server.config import TlsFiles
from server.errors import StartupError
from server.frontends.grpc.listeners import credentials_of
from server.service.access_tokens import AccessTokens
from tests.server.in_process_server import CLASSIFIER, serving


def write_certificate(path: Path, ca: trustme.CA, name: str = "127.0.0.1") -> TlsFiles:
    """Writes a certificate and key for ``name``, issued by ``ca``."""
    issued = ca.issue_cert("127.0.0.1", common_name=name)
    files = TlsFiles(certificate=path / f"{name}.pem", key=path / f"{name}.key")
    issued.private_key_pem.write_to_path(files.key)
    files.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    return files


def write_ca(path: Path, ca: trustme.CA) -> Path:
    ca.cert_pem.write_to_path(path)
    return path


async def can_call(running: RunningServer, security: Security) -> bool:
    """Whether a call over a new connection succeeds."""
    target = f"127.0.0.1:{running.port}"
    try:
        async with AsyncClient(target, security=security, timeout_seconds=20) as client:
            return bool((await client.classify(CLASSIFIER, "12")).outputs)
    except TriuneError as error:
        if error.code != grpc.StatusCode.UNAVAILABLE:
            raise
        return False


async def test_reloads_certificates_when_files_change(bundles: Path, tmp_path: Path) -> None:
    old, new = trustme.CA(), trustme.CA()
    before = Security(ca_file=write_ca(tmp_path / "old", old))
    after = Security(ca_file=write_ca(tmp_path / "new", new))
    files = write_certificate(tmp_path, old)
    async with serving(bundles, tls=files) as running:
        target = f"127.0.0.1:{running.port}"
        async with AsyncClient(target, security=before) as client:
            assert (await client.classify(CLASSIFIER, "12")).outputs
            assert not await can_call(running, after)
            assert not await can_call(running, Security())
            # A temporarily mismatched key changes nothing.
            whole = files.key.read_bytes()
            files.key.write_bytes(new.issue_cert("other").private_key_pem.bytes())
            assert await can_call(running, before)
            files.key.write_bytes(whole)
            write_certificate(tmp_path, new)
            assert await can_call(running, after)
            assert not await can_call(running, before)
            assert (await client.classify(CLASSIFIER, "12")).outputs  # the open connection survives
        assert await asyncio.to_thread(health.status, target, "", 20, after) == "SERVING"


async def test_mutual_tls_requires_a_client_certificate(bundles: Path, tmp_path: Path) -> None:
    ca, stranger = trustme.CA(), trustme.CA()
    ca_file = write_ca(tmp_path / "ca", ca)
    files = write_certificate(tmp_path, ca)
    tls = TlsFiles(certificate=files.certificate, key=files.key, client_ca=ca_file)
    (tmp_path / "theirs").mkdir()
    trusted, untrusted = (
        write_certificate(tmp_path, ca, "mine"),
        write_certificate(tmp_path / "theirs", stranger, "mine"),
    )
    async with serving(bundles, tls=tls) as running:
        for client_files, expected in ((trusted, True), (untrusted, False), (None, False)):
            security = Security(
                ca_file=ca_file,
                certificate_file=None if client_files is None else client_files.certificate,
                key_file=None if client_files is None else client_files.key,
            )
            assert await can_call(running, security) == expected


async def test_command_line_accepts_tls_and_token_options(
    bundles: Path, tokens: Path, tmp_path: Path
) -> None:
    ca = trustme.CA()
    trusted = tmp_path / "mine"
    trusted.write_text("first-token\n")
    flags = ["--tls-ca", str(write_ca(tmp_path / "ca", ca)), "--token-file", str(trusted)]
    async with serving(bundles, tokens=tokens, tls=write_certificate(tmp_path, ca)) as running:

        async def run(*arguments: str, flags: list[str] = flags) -> "tuple[int, str]":
            command = [sys.executable, "-m", "client", "--target", f"127.0.0.1:{running.port}"]
            completed = await asyncio.to_thread(
                subprocess.run,
                [*command, *flags, *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=60,
            )
            return completed.returncode, completed.stdout + completed.stderr

        admin = ["--admin", f"127.0.0.1:{running.admin_port}"]
        assert await run("health") == (0, "SERVING\n")
        assert (await run("models", flags=flags[:2]))[1].startswith("error: UNAUTHENTICATED")
        assert await run("load", CLASSIFIER, *admin) == (0, f"{CLASSIFIER} 1 is ready\n")
        assert await run("unload", CLASSIFIER, *admin) == (0, f"{CLASSIFIER} 1 is unloaded\n")


def test_invalid_credentials_fail_startup(tmp_path: Path) -> None:
    ca = trustme.CA()
    good, other = write_certificate(tmp_path, ca), write_certificate(tmp_path, ca, "other")
    (tmp_path / "bad").write_text("two words")
    for tls in (
        TlsFiles(certificate=tmp_path / "none", key=good.key),
        TlsFiles(certificate=good.certificate, key=other.key),
        TlsFiles(certificate=good.certificate, key=good.key, client_ca=tmp_path / "bad"),
    ):
        with pytest.raises(StartupError, match="TLS certificate"):
            credentials_of(tls)
    for path in (tmp_path / "none", tmp_path / "bad"):
        with pytest.raises(StartupError, match="tokens: "):
            AccessTokens(path)
