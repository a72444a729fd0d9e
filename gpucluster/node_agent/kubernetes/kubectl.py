"""The only place that runs kubectl: JSON in and out, with the rights of the administrator, always with a time limit."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpucluster.node_agent import programs
from gpucluster.node_agent.errors import Failed, Refused
from gpucluster.node_agent.kubernetes import faults

ADMIN = "/etc/kubernetes/admin.conf"
#: With the rights of this host's kubelet.
KUBELET = "/etc/kubernetes/kubelet.conf"
#: Seconds for one request. kubectl itself would try for ever where no server answers.
SECONDS = 20.0
#: Seconds of a connection through the API server, at most.
_FORWARDED_S = 30.0
#: Seconds for it to end.
_END_S = 5.0
_FORWARDED = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+) ")
_MINOR = re.compile(r"\d+")
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


class ApiFailed(Failed):
    """kubectl failed.

    Args:
        fault: why.
        where: the object of the request.
    """

    def __init__(self, fault: faults.KubectlFault, where: str = "") -> None:
        message = f"{where}: {fault.message}" if where and fault.kind not in faults.OF_THE_SERVER else fault.message
        super().__init__(message, fault.hint)
        self.kind = fault.kind


class Kubectl:
    """Requests to the API server.

    Args:
        kubeconfig: the file with its address and our certificate.
        program: the program kubectl.
    """

    def __init__(self, kubeconfig: str = ADMIN, program: str = "kubectl") -> None:
        self._kubeconfig = kubeconfig
        self._argv = [program, f"--kubeconfig={kubeconfig}"]
        self._minor: int | None = None

    def run(self, *words: str, text: str = "", seconds: float = SECONDS, where: str = "") -> str:
        """Run kubectl and return its standard output.

        Args:
            text: its standard input.
            seconds: of one request; kubectl gets a little more to end.
            where: names the object in an error.

        Raises:
            ApiFailed: it failed; `kind` is the reason.
            Failed: it is not installed, or did not end in time.
        """
        argv = [*self._argv, f"--request-timeout={seconds:.0f}s", *words]
        result = programs.call(argv, text, seconds + 10)
        if result.returncode == programs.MISSING:
            raise Failed("kubectl is not installed on the controller", "Run: gpucluster apply")
        if result.returncode != 0:
            raise ApiFailed(faults.explained(result.stderr, result.returncode, self._kubeconfig), where)
        return result.stdout

    def object(self, *words: str, text: str = "", seconds: float = SECONDS, where: str = "") -> dict[str, Any]:
        """Run kubectl and return the object that it prints as JSON.

        Raises:
            ApiFailed: see `run`.
            Failed: it printed something else.
        """
        printed = self.run(*words, text=text, seconds=seconds, where=where)
        try:
            answer = json.loads(printed)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Failed(f"kubectl printed no object of JSON: {printed.strip()[:80]!r}", "See: kubectl version")
        return answer

    def get(self, kind: str, name: str, namespace: str = "") -> dict[str, Any]:
        """One object.

        Raises:
            ApiFailed: its `kind` is `faults.NOT_FOUND` where there is none.
        """
        return self.object("get", kind, name, *_namespace(namespace), "--output=json", where=f"{kind} {name}")

    def list(self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "") -> list[dict[str, Any]]:
        """The objects of a kind, of all namespaces where none is named.

        Args:
            labels: a selector of labels.
            fields: a selector of fields, such as `spec.nodeName=compute-1`.
        """
        place = _namespace(namespace) or ["--all-namespaces"]
        more = [f"--selector={labels}"] * bool(labels) + [f"--field-selector={fields}"] * bool(fields)
        answer = self.object("get", kind, *place, *more, "--output=json", where=kind)
        items = answer.get("items", [])
        return [item for item in items if isinstance(item, dict)]

    def patch(self, kind: str, name: str, change: Mapping[str, Any], namespace: str = "") -> None:
        """Change an object by a merge patch."""
        words = ["patch", kind, name, *_namespace(namespace), "--type=merge", f"--patch={json.dumps(change)}"]
        self.run(*words, where=f"{kind} {name}")

    def post(self, path: str, body: Mapping[str, Any], where: str = "") -> None:
        """Create by a path of the API, such as the eviction of a pod."""
        self.run("create", f"--raw={path}", "--filename=-", text=json.dumps(body), where=where)

    def delete(self, kind: str, name: str, namespace: str = "", *words: str) -> None:
        """Delete an object, and do not wait until it is gone. It is not an error if there is none."""
        self.run(
            "delete", kind, name, *_namespace(namespace), "--ignore-not-found", "--wait=false", *words,
            where=f"{kind} {name}",
        )  # fmt: skip

    @contextlib.contextmanager
    def forwarded(self, target: str, port: int, namespace: str) -> Iterator[int]:
        """Lead a port of this host's loopback to one of a pod or service, by the API server, to the end of the block.

        Args:
            target: `service/NAME`, of which one pod is taken, or `pod/NAME`.

        Yields:
            the number of the port here.

        Raises:
            Failed: no pod of it runs, or the API server does not answer.
        """
        words = ["port-forward", *_namespace(namespace), target, f":{port}", "--address=127.0.0.1"]
        try:
            running = programs.stream(["timeout", f"{_FORWARDED_S:.0f}", *self._argv, *words])
        except OSError as error:
            raise Failed(f"kubectl can't be started: {error.strerror}", "Run: gpucluster apply") from None
        try:
            line = running.stdout.readline().decode(errors="replace") if running.stdout else ""
            match = _FORWARDED.search(line)
            if match is None:
                raise Failed(f"no connection to port {port} of {target} by the API server", f"See: kubectl {words[0]}")
            yield int(match[1])
        finally:
            programs.end(running, _END_S)

    def server(self) -> str:
        """The address of the API server, `https://10.0.0.2:6443`."""
        config = self.object("config", "view", "--minify", "--output=json")
        return str(config["clusters"][0]["cluster"]["server"])

    def authority(self) -> str:
        """The certificate of the API server's CA, as PEM."""
        config = self.object("config", "view", "--raw", "--minify", "--flatten", "--output=json")
        data = config["clusters"][0]["cluster"].get("certificate-authority-data", "")
        return base64.b64decode(data).decode()

    def minor(self) -> int:
        """The minor release of the API server, 34 of 1.34.2; it is asked once."""
        if self._minor is None:
            match = _MINOR.match(str(self.object("get", "--raw=/version").get("minor", "")))
            if match is None:
                raise Failed("the API server does not report its version", "See: kubectl version")
            self._minor = int(match[0])
        return self._minor


def _namespace(name: str) -> list[str]:
    return [f"--namespace={name}"] if name else []


def checked_name(name: object, what: str = "node") -> str:
    """The name of an object: a word that can't be an option of kubectl.

    Raises:
        Refused: it is none.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise Refused(f"not the name of a {what}: {str(name)[:60]!r}")
    return name
