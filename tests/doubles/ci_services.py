"""Doubles of what pipelines keep plans in and comment with: `gh` and `oci` as programs, GitLab's API as a server.

They check arguments and tokens, keep files in a folder, and write comments into it. What they do not prove: that the
real programs and services accept the same requests; their form is from `gh help`, GitLab's pages "Generic packages
repository" and "Notes API", and the reference of oci-cli.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

JOB_TOKEN, COMMENT_TOKEN = "planted-job-token", "planted-comment-token"

_GH = r"""#!/bin/bash
set -eu
[ -n "${GH_TOKEN:-}" ] || { echo "gh: set GH_TOKEN" >&2; exit 4; }
case "$1 $2" in
  "pr comment") [ "$3 $4 $5 $6 $7 $8" = "7 --repo example/site --edit-last --create-if-none --body-file" ]
    cp "$9" "$KEPT/comment" ;;
  "api repos/example/site/actions/artifacts?name="*)
    name=${2#*=}; [ "$3 $4" = "--jq .artifacts[0].workflow_run.id // empty" ]
    if [ -e "$KEPT/$name" ]; then echo 42; fi ;;
  "run download") [ "$3 $4 $5 $6" = "42 --repo example/site --name" ]; cp "$KEPT/$7" cluster.plan ;;
  *) echo "gh: unknown command $*" >&2; exit 1 ;;
esac
"""
_OCI = r"""#!/bin/bash
set -eu
[ "$OCI_CLI_AUTH" = resource_principal ]
case "$1 $2 $3 $4" in
  "artifacts generic artifact upload-by-path")
    [ "$5 $6 $7 $8 $9 ${11}" = "--repository-id plans --artifact-path cluster.plan --artifact-version --content-body" ]
    cp "${12}" "$KEPT/cluster-plan-${10}" ;;
  "artifacts generic artifact download-by-path")
    [ "$5 $6 $7 $8 $9 ${11}" = "--repository-id plans --artifact-path cluster.plan --artifact-version --file" ]
    [ -e "$KEPT/cluster-plan-${10}" ] || { echo "ServiceError: 404" >&2; exit 1; }
    cp "$KEPT/cluster-plan-${10}" "${12}" ;;
  "devops pull-request-comment create-pull-request-comment --pull-request-id") [ "$6" = --data ]
    printf '%s\n' "$7" > "$KEPT/comment" ;;
  *) echo "oci: unknown command $*" >&2; exit 1 ;;
esac
"""
_SSH_AGENT = "#!/bin/sh\necho 'SSH_AUTH_SOCK=/nowhere; export SSH_AUTH_SOCK; echo Agent pid 1;'\n"
_SSH_ADD = "#!/bin/sh\n[ \"$*\" = '-q -' ] && grep -q planted-ssh-key\n"


def programs(folder: Path) -> None:
    """Write the programs into a folder."""
    folder.mkdir()
    for name, text in {"gh": _GH, "oci": _OCI, "ssh-agent": _SSH_AGENT, "ssh-add": _SSH_ADD}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)


_PACKAGES = "/projects/5/packages/generic/cluster-plan/"


class _GitLab(BaseHTTPRequestHandler):
    kept: Path

    def _answer(self, status: int, body: bytes = b"{}") -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _plan(self) -> Path | None:
        tree, _, name = self.path.removeprefix(_PACKAGES).partition("/")
        fits = self.path.startswith(_PACKAGES) and name == "cluster.plan"
        return self.kept / f"cluster-plan-{tree}" if fits and self.headers.get("JOB-TOKEN") == JOB_TOKEN else None

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers["content-length"]))

    def do_PUT(self) -> None:
        body, plan = self._body(), self._plan()
        if plan is not None:
            plan.write_bytes(body)
        self._answer(201 if plan is not None else 401)

    def do_GET(self) -> None:
        plan = self._plan()
        if plan is None:
            self._answer(401)
        elif plan.exists():
            self._answer(200, plan.read_bytes())
        else:
            self._answer(404)

    def do_POST(self) -> None:
        body = parse_qs(self._body().decode())
        fits = self.path == "/projects/5/merge_requests/7/notes"
        if fits and self.headers.get("PRIVATE-TOKEN") == COMMENT_TOKEN:
            (self.kept / "comment").write_text(body["body"][0])
        self._answer(201 if fits else 404)

    def log_message(self, *_args: Any) -> None:
        pass


@contextmanager
def gitlab(kept: Path) -> Iterator[str]:
    """GitLab's API. Yields its URL, as CI_API_V4_URL."""
    handler = type("Handler", (_GitLab,), {"kept": kept})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=lambda: server.serve_forever(poll_interval=0.01), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
