"""Takes secrets out of texts that are kept as evidence: what programs print may show their environment. Pure.

nccl-tests write the whole environment of the process into their JSON, and a shell with `set -x` or a program that fails
may print the rest.
"""

from __future__ import annotations

import re

HIDDEN = "[removed]"
#: Parts of the names of variables and keys that hold secrets.
_WORDS = (
    *("token", "secret", "password", "passwd", "passphrase", "credential", "auth", "cookie", "session"),
    *(f"{kind}{dash}key" for kind in ("api", "access", "private") for dash in ("", "_", "-")),
)
#: A private key as OpenSSL and OpenSSH write it; one that is cut off goes to the end of the text.
_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----|\Z)", re.DOTALL
)
#: `NAME=value`, as `env` and shells have it: to the end of the word or of the quotes.
_VARIABLE = re.compile(r"\b([A-Za-z_][\w.-]{0,127})=(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s\"',;]+)")
#: `"name": "value"`, as JSON has it; the value may have quotes behind a backslash.
_MEMBER = re.compile(r"\"([\w.-]{1,128})\"(\s{0,4}:\s{0,4})\"(?:[^\"\\\n]|\\.)*\"")
_URL = re.compile(r"(?P<name>://[^/\s:@]{0,256}):[^/\s@]{1,1024}@")
_HEADER = re.compile(r"(?i)\b(?P<name>(?:bearer|basic)\s{1,4})[a-z0-9+/=._~-]{8,}")
#: The environment in the JSON of nccl-tests: "env": ["NAME=value", ...].
_ENVIRONMENT = re.compile(r'"env"\s{0,8}:\s{0,8}\[(?P<words>(?:[^\]"]|"(?:[^"\\]|\\.)*")*)\]')
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: The variables that show how it was measured.
_KEPT = ("NCCL_", "RCCL_", "UCX_", "OMPI_MCA_", "SLURM_JOB_ID=", "SLURM_JOB_NODELIST=", "SLURM_NTASKS=", "CUDA_")


def scrubbed(text: str) -> str:
    """The text without what looks like a secret."""
    # Large outputs have nearly nothing of all this: to look for words first is much cheaper.
    if '"env"' in text:
        text = _ENVIRONMENT.sub(_environment, text)
    if "PRIVATE KEY-----" in text:
        text = _KEY.sub(HIDDEN, text)
    if "://" in text:
        text = _URL.sub(rf"\g<name>:{HIDDEN}@", text)
    lowered = text.lower()
    if "bearer" in lowered or "basic" in lowered:
        text = _HEADER.sub(rf"\g<name>{HIDDEN}", text)
    if any(word in lowered for word in _WORDS):
        text = "\n".join(_line(line) for line in text.split("\n"))
    return text


def _line(line: str) -> str:
    if not _is_secret(line):
        return line
    line = _VARIABLE.sub(lambda match: f"{match[1]}={HIDDEN}" if _is_secret(match[1]) else match[0], line)
    return _MEMBER.sub(lambda match: f'"{match[1]}"{match[2]}"{HIDDEN}"' if _is_secret(match[1]) else match[0], line)


def _is_secret(name: str) -> bool:
    lowered = name.lower()
    return any(word in lowered for word in _WORDS)


def _environment(match: re.Match[str]) -> str:
    kept = [word for word in _WORD.findall(match["words"]) if word.startswith(_KEPT)]
    return '"env": [' + ", ".join(f'"{word}"' for word in kept) + "]"
