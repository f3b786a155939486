"""A Kubernetes API server with its etcd, built once from Go modules; Linux, Go 1.24 or later."""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from ssl import SSLContext, create_default_context
from typing import Any, ClassVar

from airflow_eos_testing.certificates import Certificates, make_certificates
from airflow_eos_testing.exceptions import EmbeddedServerError
from airflow_eos_testing.jars import cache_root, file_lock
from airflow_eos_testing.ports import HOST, free_ports
from airflow_eos_testing.server import EmbeddedServer

log = logging.getLogger(__name__)

NAMESPACE = "default"
VERSION = "1.34.3"
_SOURCE = Path(__file__).parent / "server"
_BUILD_TIMEOUT = 3600.0
_REQUEST_TIMEOUT = 10.0


class KubernetesApi(EmbeddedServer):
    """Run an API server; it only stores pods: a kubelet has to run them."""

    name = "The Kubernetes API server"
    folder_prefix = "airflow-eos-kubernetes-"
    start_timeout: ClassVar[float] = 120.0

    def __init__(self) -> None:
        super().__init__()
        self.token = secrets.token_hex(16)
        self._port = 0

    @property
    def url(self) -> str:
        """Address, ``https://host:port``."""
        return f"https://{HOST}:{self._port}"

    @property
    def token_file(self) -> Path:
        """File with the token of the administrator."""
        return self.home / "token"

    @property
    def kubeconfig(self) -> Path:
        """``KUBECONFIG`` of the administrator."""
        return self.home / "kubeconfig"

    @cached_property
    def certificates(self) -> Certificates:
        """The server's certificate and its authority."""
        return make_certificates(self.home)

    def request(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """Send a request and return the decoded answer; a PATCH is a merge patch.

        :param path: below ``/api/v1/namespaces/default``, such as ``pods/driver``.
        :raises urllib.error.HTTPError: the server refuses it.
        """
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(  # noqa: S310 - our own server
            f"{self.url}/api/v1/namespaces/{NAMESPACE}/{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.token}", "Content-Type": kind},
            method=method,
        )
        with urllib.request.urlopen(  # noqa: S310
            request, timeout=_REQUEST_TIMEOUT, context=self._trust
        ) as answer:
            content: dict[str, Any] = json.load(answer)
            return content

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return all objects of a kind, such as ``pods``."""
        items: list[dict[str, Any]] = self.request("GET", kind)["items"]
        return items

    @cached_property
    def _trust(self) -> SSLContext:
        return create_default_context(cafile=str(self.certificates.ca))

    def _command(self) -> list[str]:
        program = _built()
        self._port, etcd = free_ports(2)
        users = self.home / "users.csv"
        users.write_text(f'{self.token},administrator,1,"system:masters"\n')
        self.token_file.write_text(self.token)
        self.kubeconfig.write_text(json.dumps(self._client_configuration()))
        for path in (users, self.token_file, self.kubeconfig):
            path.chmod(0o600)
        key = str(self.certificates.keystore)
        options = {
            "advertise-address": HOST,
            "allow-privileged": "true",
            "authorization-mode": "RBAC",
            "bind-address": HOST,
            # The controller manager, which does not run here, would create service accounts and their tokens.
            "disable-admission-plugins": "ServiceAccount",
            "endpoint-reconciler-type": "none",
            "secure-port": str(self._port),
            "service-account-issuer": self.url,
            "service-account-key-file": key,
            "service-account-signing-key-file": key,
            "service-cluster-ip-range": "10.0.0.0/24",
            "tls-cert-file": key,
            "tls-private-key-file": key,
            "token-auth-file": str(users),
        }
        arguments = [f"--{name}={value}" for name, value in options.items()]
        return [str(program), str(self.home / "etcd"), f"http://{HOST}:{etcd}", *arguments]

    def _client_configuration(self) -> dict[str, Any]:
        server = {"server": self.url, "certificate-authority": str(self.certificates.ca)}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": server}],
            "users": [{"name": "administrator", "user": {"token": self.token}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "administrator"}}],
            "current-context": "here",
        }

    def _answers(self) -> bool:
        try:
            return bool(self.request("GET", ""))  # the namespace exists
        except (urllib.error.URLError, OSError):
            return False


def can_be_built() -> bool:
    """Return whether Go is installed, or the server was built before."""
    return _program_path().exists() or shutil.which("go") is not None


def _program_path() -> Path:
    return cache_root() / f"kubernetes-{VERSION}" / "api-server"


def _built() -> Path:
    """Return the server's binary, built on first use, which takes minutes and gigabytes of Go's caches."""
    program = _program_path()
    with file_lock(program.parent.with_name(f"{program.parent.name}.lock")):
        if not program.exists():
            log.warning("Building the Kubernetes API server %s into %s; this is done once", VERSION, program)
            _build(program)
    return program


def _build(program: Path) -> None:
    program.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=program.parent) as scratch:
        done = subprocess.run(
            ["go", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", f"{scratch}/server", "."],
            cwd=_SOURCE,
            env={**os.environ, "CGO_ENABLED": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_BUILD_TIMEOUT,
            check=False,
        )
        if done.returncode:
            raise EmbeddedServerError(
                f"The Kubernetes API server was not built (Go 1.24 or later is needed): {done.stdout[-2000:]}"
            )
        Path(scratch, "server").rename(program)
