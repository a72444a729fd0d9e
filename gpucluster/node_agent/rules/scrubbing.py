"""Takes secrets out of what is kept or leaves a host: logs, configuration, outputs of programs, JSON values. Pure.

One place has these rules, for evidence of `verify`, outputs of jobs, and support bundles. A secret is found in three
ways: by the name that it stands under (`StoragePass=`, `--token`, `"api_key":`), by its own form (private keys,
hashes of passwords, tokens with a known beginning, long random texts), and because the caller knows it (`Scrubber`).

Rather too much is removed than too little: who needs a value can look on the host.

Sources of the forms: RFC 7468 (PEM), RFC 7519 (JWT), crypt(5), RFC 2307 (`{SSHA}`), kubeadm's reference (bootstrap
tokens), munge(7) (credentials), GitHub's, GitLab's, Slack's, Hugging Face's and AWS' pages on the forms of their
tokens, OCI's page on pre-authenticated requests.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

HIDDEN = "[removed]"

# --- names -----

#: Anywhere in a name.
_PARTS = re.compile(
    r"passw|pass[_-]?phrase|pass[_-]?code|passfile|storagepass|secret|token|credential|cookie|authorization|authtok|"
    r"netrc|^private$|api[_-]?key|access[_-]?key|bindpw|rootpw|requirepass|masterauth|kubeconfig|identityfile",
    re.IGNORECASE,
)
#: Whole words of a name, which may be written in any of the usual ways: X_KEY, sslKey, munge.key.
_WORDS = frozenset({"key", "keys", "pass", "jwt", "pw", "pwd", "psk", "auth", "cred", "creds", "session", "pin", "otp"})
_NO_KEYS = frozenset({"monkey", "turkey", "donkey", "hockey", "jockey", "whiskey"})
#: Names that look like it, and whose values are no secrets. Public keys have a form of their own.
_PUBLIC = re.compile(
    r"^(?:auth_?type|auth_?info|auth_?alt_?types|cred_?type|ssh_(?:authorized_)?keys|authorized_keys|host_?keys?_?"
    r"(?:algorithms|alias)?|key_?types?|keyboard\w*|.*pub(?:lic)?[_-]?keys?|key_?alias|.*_?session_?(?:id|type|class))$",
    re.IGNORECASE,
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+")
#: Values that say whether something is set, and not what it is.
_HARMLESS = frozenset({
    "", "true", "false", "yes", "no", "on", "off", "none", "null", "(null)", "not", "unset", "(none)", "n/a", "0", "1",
})  # fmt: skip


@lru_cache(maxsize=8192)
def is_secret_name(name: str) -> bool:
    """Whether a value under this name is a secret."""
    if _PUBLIC.match(name):
        return False
    if _PARTS.search(name):
        return True
    words = [word.lower() for word in _HUMP.split(name) if word]
    return any(word in _WORDS or (word.endswith("key") and word not in _NO_KEYS) for word in words)


# --- forms -----

#: With what stands before each line of it in a journal, the largest has less than the bound.
_KEY_BLOCK = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----"
    r"(?:.{0,40000}?-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----|.{0,40000})",
    re.DOTALL,
)
_KEY_END = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_LINE = re.compile(r"[A-Za-z0-9+/=]{4,}")
_PUTTY = re.compile(r"PuTTY-User-Key-File-\d.*?(?:Private-MAC:[^\n]*|\Z)", re.DOTALL)
_URL = re.compile(r"(?P<name>\b[a-z][a-z0-9+.-]{1,20}://[^/\s:@'\"]{0,256}):[^\s'\"]{1,1024}@")
#: A pre-authenticated request of OCI's object storage.
_REQUEST = re.compile(r"(?P<name>/p/)[A-Za-z0-9_-]{16,}(?=/n/)")
_HEADER = re.compile(r"(?i)\b(?P<name>(?:bearer|basic|digest|negotiate)\s{1,4})[a-z0-9+/=._~-]{8,}")
#: Each with signs of which one is in every such text: to look for them first is much cheaper.
_FORMS = tuple(
    (signs, re.compile(pattern))
    for signs, pattern in (
        (("eyJ", "eyA", "eyB", "eyK"), r"\bey[JABK][A-Za-z0-9_-]{5,}\.[A-Za-z0-9_-]{4,}(?:\.[A-Za-z0-9_-]*)?"),  # JWT
        # crypt(5)
        (("$",), r"\$(?:1|2[abxy]?|5|6|7|y|gy|md5|sha1|argon2\w{1,2}|scrypt|pbkdf2[\w-]*)\$[\w./$=,+-]{8,}"),
        # RFC 2307
        (("{",), r"\{(?:S?SHA\d*|S?MD5|CRYPT|ARGON2\w*|PBKDF2[\w-]*|BCRYPT|SASL|CLEARTEXT)\}[^\s\"',]{4,}"),
        (("MUNGE:",), r"\bMUNGE:[A-Za-z0-9+/=]+:?"),
        (("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{20,}"),
        (("github_pat_", "dckr_pat_"), r"\b(?:github|dckr)_pat_[\w-]{16,}"),
        (("glpat-",), r"\bglpat-[\w-]{16,}"),
        (("xox",), r"\bxox[abeoprs]-[\w-]{10,}"),
        (("hf_",), r"\bhf_[A-Za-z0-9]{16,}"),
        (("nvapi-",), r"\bnvapi-[\w-]{16,}"),
        (("sk-",), r"\bsk-[\w-]{20,}"),
        (("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
        (("AIza",), r"\bAIza[\w-]{30,}"),
        (("hvs.",), r"\bhvs\.[\w-]{16,}"),
        (("npm_", "glsa_"), r"\b(?:npm|glsa)_\w{20,}"),
        (("pypi-",), r"\bpypi-[\w-]{20,}"),
        (("AGE-SECRET",), r"\bAGE-SECRET-KEY-1[A-Z0-9]{20,}"),
        (("*",), r"(?<![\w*])\*[0-9A-F]{40}\b"),  # MariaDB's hash of a password
    )
)
#: A bootstrap token of Kubernetes: six signs, a point, sixteen signs.
_BOOTSTRAP = re.compile(r"\.[a-z0-9]{16}(?![\w.])")
_BOOTSTRAP_ID = re.compile(r"(?<![\w.])[a-z0-9]{6}$")
#: Long enough to be random. Paths, names and numbers in hexadecimal are told from it by `_is_random`.
_LONG = re.compile(r"(?<![A-Za-z0-9+/_-])[A-Za-z0-9+/_-]{24,}={0,2}")
#: What is before a public text of that form: fingerprints, public keys of ssh, OCIDs.
_BEFORE_PUBLIC = re.compile(r"(?:SHA256:|SHA512:|ocid1\.[a-z0-9.-]*|sha256-|sha512-)$", re.IGNORECASE)
_PUBLIC_KEY = re.compile(r"^AAAA(?:B3NzaC1|C3NzaC1|E2VjZHNh|Gn)")
_LOWEST_CHANGES, _LOWEST_BITS = 0.42, 3.7
#: Signs of a long word that are looked at.
_ENOUGH = 256
#: A text in base64 that is worth to be decoded, and how often that is done.
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{12,}={0,2}(?![A-Za-z0-9+/_=-])")
_DEEPEST = 2
#: Levels of lists and objects of a JSON value; what lies deeper is removed. What we read has about ten.
_DEEPEST_VALUE = 60

# --- lines -----

#: A name with what separates it from its value: `=`, `:`, `=>`, `:=`, also behind quotes with a backslash.
_NAMED = re.compile(r"(?<![\w.-])([\w.-]{1,128}?)(\\{0,2}[\"']?\s{0,16}(?:=>|::|:=|==|[=:])\s{0,16})(?=\S)")
#: Signs before a name in which is looked for where it stands.
_NEAR = 2000
_LINE_NAME = re.compile(r"^[\s#;-]*(?:export\s+|set\s+|setenv\s+|declare\s+-\w+\s+)?$", re.IGNORECASE)
_FLAG = re.compile(r"(?<![\w-])(--?)([A-Za-z][\w-]{1,63})(\s+)(\"[^\"\n]*\"?|'[^'\n]*'?|(?!-)\S+)")
_XML = re.compile(r"<([\w.:-]{1,128})((?:\s[^>]{0,256})?>)([^<\n]{1,4096})(?=<|$)")
_PROSE = re.compile(
    r"(?i)\b((?:pass(?:word|wd|phrase|code)|secret|token|credentials?|(?:api|private|access|munge)[ _-]?key)s?"
    r"(?:\s+(?:for|of)\s+\S{1,64})?\s+(?:is|was|are|to|now)\s+|(?:pass(?:word|wd|phrase|code)|secret|token)s?\s+"
    r"(?:for|of)\s+\S{1,64}?\s{0,4}[:=]\s{0,4})(\"[^\"\n]*\"?|'[^'\n]*'?|\S+)"
)
#: What may follow "password is" in an ordinary sentence.
_SENTENCE = frozenset((
    "not", "set", "empty", "wrong", "invalid", "expired", "required", "missing", "unset", "changed", "correct", "valid",
    "a", "an", "the", "be", "in", "on", "at", "of", "used", "needed", "too", "no", "now", "been", "stored", "written",
    "refused", "accepted", "old", "new", "unknown", "there", "removed", "different", "same", "only", "for", "as", "by",
))  # fmt: skip
#: A name and a value with nothing but a space between them: netrc, slapd.conf, ldap.conf, redis.conf.
_SPACED = re.compile(
    r"(?i)((?:^|[:\]]\s|login\s+\S{1,128}\s+)\s*(?:password|passwd|passphrase|bindpw|rootbindpw|rootpw|authtok|"
    r"requirepass|masterauth|secret)\s+)(\"[^\"]*\"?|'[^']*'?|\S+)\s*$"
)
_OPTIONS = (
    re.compile(r"(?i)(\b(?:mysql|mariadb)[\w-]*\b[^\n]{0,400}?\s-p)(\S+)"),
    re.compile(r"(?i)(\bldap[a-z]{3,12}\b[^\n]{0,400}?\s-[ws]\s*)(?!-)(\"[^\"]*\"?|'[^']*'?|\S+)"),
    re.compile(r"(?i)(\b(?:curl|wget)\b[^\n]{0,400}?\s(?:-u|--user)[\s=]+[\"']?[^\s:\"']{0,128}:)([^\s\"']+)"),
    re.compile(r"(?i)(\bsshpass\s+-p\s*)(\"[^\"]*\"?|'[^']*'?|\S+)"),
    re.compile(r"(?i)(\bopenssl\b[^\n]{0,400}?\spass:)(\S+)"),
    re.compile(
        r"(?i)(\bidentified\s+(?:with\s+\S+\s+)?(?:by|as|using)\s+(?:password\s*)?[(]?)(\"[^\"]*\"?|'[^']*'?|\S+)"
    ),
    re.compile(r"(?i)(\bset\s+password\b[^\n]{0,400}?=\s*(?:password\s*)?[(]?)(\"[^\"]*\"?|'[^']*'?|\S+)"),
    re.compile(r"(?i)(\becho\s+(?:-\w+\s+)?[\"']?[\w.-]{1,64}:)([^|\"']+)(?=[^\n]{0,200}?\bchpasswd\b)"),
)
_SIGNS_OF_OPTIONS = (
    *("mysql", "mariadb", "ldap", "curl", "wget", "sshpass", "openssl", "identified", "set password", "chpasswd"),
)
#: One of these is in each line that `_line` changes, in small letters.
_SIGNS = (
    *("pass", "secret", "token", "cred", "cookie", "auth", "netrc", "private", "key", "jwt", "pw", "psk", "session"),
    *("otp", "pin", "identified", "kubeconfig", "identityfile", "mysql", "mariadb", "ldap", "curl", "wget"),
)
_BLOCK = re.compile(r"^(\s*(?:-\s+)?)([\"']?)([\w.-]{1,128})\2\s*:\s*(?:[|>][+-]?\d?[+-]?|[\[{]|&\S+)?\s*$")
#: What is before a line in a journal: time, host, and the program with its pid.
_OF_JOURNAL = re.compile(
    r"(?:\d{4}-\d\d-\d\d[T ]\S{8,40}|[A-Z][a-z]{2} [ \d]\d [\d:]{8}(?:\.\d+)?) \S{1,255} "
    r"([^\s:\[]{1,128}(?:\[\d+\])?): ?"
)
_MOST_JOURNALS = 3
_SECRET_OBJECT = re.compile(r"(?:^|\]: )[\s\"']*kind[\"']?\s*:\s*[\"']?Secret\b", re.MULTILINE)
_OF_SECRET_OBJECT = frozenset({"data", "stringData"})
#: The environment in the JSON of nccl-tests: "env": ["NAME=value", ...].
_ENVIRONMENT = re.compile(r'"env"\s{0,8}:\s{0,8}\[(?P<words>(?:[^\]"]|"(?:[^"\\]|\\.)*")*)\]')
_WORD = re.compile(r'"((?:[^"\\]|\\.)*)"')
#: The variables that show how it was measured.
_KEPT = ("NCCL_", "RCCL_", "UCX_", "OMPI_MCA_", "SLURM_JOB_ID=", "SLURM_JOB_NODELIST=", "SLURM_NTASKS=", "CUDA_")


def scrubbed_text(text: str) -> str:
    """The text without what looks like a secret. Its lines stay lines."""
    return _text(text, 0)


def scrubbed(value: Any, name: str = "") -> Any:
    """The same JSON value without secrets. A text that is JSON itself becomes the value that it stands for.

    Args:
        name: the name under which it stands.
    """
    return _value(value, name, scrubbed_text)


def _value(value: Any, name: str, clean: Callable[[str], str], depth: int = 0) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if (name and is_secret_name(name)) or depth > _DEEPEST_VALUE:
        return HIDDEN
    if isinstance(value, Mapping):
        secret = value.get("kind") == "Secret"
        return {str(key): _member(str(key), inner, clean, depth + 1, secret=secret) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_value(inner, "", clean, depth + 1) for inner in value]
    return _of_text(value, clean, depth) if isinstance(value, str) else value


def _member(name: str, value: Any, clean: Callable[[str], str], depth: int, *, secret: bool) -> Any:
    """The value of a member of an object; `secret`: of a Secret of Kubernetes."""
    if secret and name in _OF_SECRET_OBJECT:
        return HIDDEN
    return _of_nccl(value) if name == "env" and _is_environment(value) else _value(value, name, clean, depth)


def _of_text(text: str, clean: Callable[[str], str], depth: int) -> Any:
    inner = _json(text)
    return clean(text) if inner is None else _value(inner, "", clean, depth + 1)


def _json(text: str) -> Any:
    """The list or object that a text is; None if it is none, or was cut off."""
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class Scrubber:
    """Removes secrets that are known, too, in the forms in which they may be written.

    Args:
        known: the secrets themselves; those of fewer than six characters would be found everywhere, and are left out.
    """

    def __init__(self, known: Iterable[str | bytes] = ()) -> None:
        self._known = sorted({form for secret in known for form in _forms(secret)}, key=len, reverse=True)

    def text(self, text: str) -> str:
        """The text without secrets. One that is JSON stays JSON."""
        text = self._without_known(text)
        value = _json(text)
        if value is None:
            return scrubbed_text(text)
        return json.dumps(_value(value, "", self._cleaned), indent=1) + "\n"

    def _cleaned(self, text: str) -> str:
        return scrubbed_text(self._without_known(text))

    def _without_known(self, text: str) -> str:
        # Much faster than one expression with all of them.
        for form in self._known:
            if form in text:
                text = _REST.sub(HIDDEN, text.replace(form, HIDDEN))
        return text


#: What is left of a known secret in base64: the last sign, which mixes with what is behind it, and the padding.
_REST = re.compile(re.escape(HIDDEN) + r"[\w+/-]?={1,2}")
_SHORTEST = 6
_PLAIN_IN_URL = frozenset(string.ascii_letters + string.digits + "-._~")
_SHORTEST_FORM = 8


def _in_url(data: bytes) -> str:
    """As a part of a URL (RFC 3986)."""
    return "".join(sign if sign in _PLAIN_IN_URL else f"%{ord(sign):02X}" for sign in data.decode("latin-1"))


def _forms(secret: str | bytes) -> Iterator[str]:
    """How a secret may be written: as it is, in base64 at any position of a longer text, in hexadecimal, in a URL."""
    data = secret if isinstance(secret, bytes) else secret.strip().encode("utf-8", errors="surrogateescape")
    if len(data) < _SHORTEST:
        return
    text = data.decode("utf-8", errors="replace")
    if text.isprintable() and "\ufffd" not in text:
        yield from (text, json.dumps(text)[1:-1], _in_url(data))
    yield from (data.hex(), data.hex().upper())
    for ahead in range(3):
        # Characters that mix with what may be before or behind it are left away.
        coded = base64.b64encode(b"\0" * ahead + data).decode().rstrip("=")
        part = coded[(0, 2, 3)[ahead] : len(coded) - (1 if (len(data) + ahead) % 3 else 0)]
        if len(part) >= _SHORTEST_FORM:
            yield from (part, part.replace("+", "-").replace("/", "_"))


# --- texts -----


def _text(text: str, depth: int) -> str:
    # Large outputs have nearly nothing of all this: to look for words first is much cheaper.
    if '"env"' in text:
        text = _ENVIRONMENT.sub(_environment, text)
    if "PRIVATE KEY" in text:
        text = _KEY_BLOCK.sub(HIDDEN, text)
        text = _without_ends(text)
    if "PuTTY-User-Key-File" in text:
        text = _PUTTY.sub(HIDDEN, text)
    if "://" in text:
        text = _URL.sub(rf"\g<name>:{HIDDEN}@", text)
    if "/p/" in text:
        text = _REQUEST.sub(rf"\g<name>{HIDDEN}", text)
    lowered = text.lower()
    if any(sign in lowered for sign in _SIGNS):
        text = _lines(text)
    if _HEADER.search(text):
        text = _HEADER.sub(rf"\g<name>{HIDDEN}", text)
    text = _without_forms(text)
    if depth < _DEEPEST:
        text = _BASE64.sub(lambda match: _decoded(match[0], depth), text)
    return _LONG.sub(_random, text)


def _without_forms(text: str) -> str:
    for signs, pattern in _FORMS:
        if any(sign in text for sign in signs):
            text = pattern.sub(HIDDEN, text)
    return _without_bootstrap_tokens(text)


def _without_bootstrap_tokens(text: str) -> str:
    parts: list[str] = []
    start = 0
    for match in _BOOTSTRAP.finditer(text):
        if _BOOTSTRAP_ID.search(text, max(start, match.start() - 7), match.start()):
            parts += [text[start : match.start() - 6], HIDDEN]
            start = match.end()
    return "".join([*parts, text[start:]]) if parts else text


def _without_ends(text: str) -> str:
    """The text without the ends of private keys whose beginning was cut off: the lines of base64 before them."""
    if not _KEY_END.search(text):
        return text
    lines = text.split("\n")
    for number, line in enumerate(lines):
        if not _KEY_END.search(line):
            continue
        lines[number] = _KEY_END.sub(HIDDEN, line)
        before = number - 1
        while before >= 0 and (words := lines[before].split()) and _KEY_LINE.fullmatch(words[-1]):
            lines[before] = lines[before].replace(words[-1], HIDDEN)
            before -= 1
    return "\n".join(lines)


def _lines(text: str) -> str:
    of_secret = _SECRET_OBJECT.search(text) is not None
    lines: list[str] = []
    # How far the name of a block is indented whose lines are all removed, by the program that writes it: the lines of
    # several programs alternate in a journal.
    inside: dict[str, int] = {}
    for line in text.split("\n"):
        lowered = line.lower()
        signed = any(sign in lowered for sign in _SIGNS)
        if not (inside or signed or of_secret):
            lines.append(line)
            continue
        before, program = _origin(line)
        rest = line[len(before) :]
        indent = len(rest) - len(rest.lstrip())
        outer = inside.get(program)
        if outer is not None:
            listed = indent == outer and rest.lstrip()[:2] in ("- ", "-")
            if not rest.strip() or indent > outer or listed:
                lines.append(f"{before}{' ' * indent}{HIDDEN}" if rest.strip() else line)
                continue
            del inside[program]
        block = _BLOCK.match(rest)
        if block and (is_secret_name(block[3]) or (of_secret and block[3] in _OF_SECRET_OBJECT)):
            inside[program] = len(block[1])
            lines.append(line)
            continue
        lines.append(_line(line) if signed else line)
    return "\n".join(lines)


def _origin(line: str) -> tuple[str, str]:
    """What is before the text of a line in a journal, and which program wrote it. A program may pass on the lines of
    another journal."""
    end = 0
    programs: list[str] = []
    while len(programs) < _MOST_JOURNALS and (match := _OF_JOURNAL.match(line, end)):
        end = match.end()
        programs.append(match[1])
    return line[:end], " ".join(programs)


def _line(line: str) -> str:
    line = _named_values(line)
    if "<" in line:
        line = _XML.sub(lambda match: f"<{match[1]}{match[2]}{HIDDEN}" if is_secret_name(match[1]) else match[0], line)
    if "-" in line:
        line = _FLAG.sub(
            lambda match: f"{match[1]}{match[2]}{match[3]}{HIDDEN}" if is_secret_name(match[2]) else match[0], line
        )
    lowered = line.lower()
    if any(sign in lowered for sign in _SIGNS_OF_OPTIONS):
        for pattern in _OPTIONS:
            line = pattern.sub(rf"\g<1>{HIDDEN}", line)
    line = _PROSE.sub(_of_sentence, line)
    return _SPACED.sub(lambda match: match[0] if _is_word(match[2]) else f"{match[1]}{HIDDEN}", line)


def _of_sentence(match: re.Match[str]) -> str:
    return match[0] if _is_word(match[2]) else f"{match[1]}{HIDDEN}"


def _is_word(value: str) -> bool:
    bare = value.strip("\"'.,;:!?()").lower()
    return bare in _SENTENCE or bare in _HARMLESS


def _named_values(line: str) -> str:
    """The line without the values that stand behind a name of a secret."""
    parts: list[str] = []
    start = 0
    while True:
        match = _NAMED.search(line, start)
        if match is None:
            break
        if not is_secret_name(match[1]):
            parts.append(line[start : match.end()])
            start = match.end()
            continue
        end = _value_end(line, match)
        value = line[match.end() : end]
        kept = value.strip("\"',;").lower() in _HARMLESS or value.startswith(HIDDEN)
        parts.append(line[start : match.end()] + (value if kept else HIDDEN))
        start = end
    return "".join([*parts, line[start:]]) if parts else line


def _value_end(line: str, match: re.Match[str]) -> int:
    """Where the value behind a name ends."""
    start, between = match.end(), match[2]
    first = line[start : start + 1]
    if first in "\"'":
        return _quoted_end(line, start + 1, first)
    if line[start : start + 2] == '\\"':
        end = line.find('\\"', start + 2)
        return len(line) if end < 0 else end + 2
    if first in "[{(":
        return len(line)
    here = match.start()
    opened, closed = (line.rfind(sign, max(0, here - _NEAR), here) for sign in "{}")
    if opened > closed:
        end = min((at for at in (line.find(sign, start) for sign in ",}") if at >= 0), default=len(line))
        return end
    spaced = between.rstrip() != between or between.lstrip() != between
    if spaced or (here < _NEAR and _LINE_NAME.match(line[:here])):
        return len(line)
    end = start
    while end < len(line) and not line[end].isspace() and line[end] not in "\"'":
        end += 1
    return end


def _quoted_end(line: str, start: int, quote: str) -> int:
    end = start
    while end < len(line):
        if line[end] == "\\":
            end += 2
            continue
        if line[end] == quote:
            return end + 1
        end += 1
    return len(line)


def _decoded(word: str, depth: int) -> str:
    """The word, or HIDDEN if it is a text in base64 in which there is a secret."""
    bare = word.rstrip("=")
    try:
        data = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_" if set("-_") & set(bare) else None)
        text = data.decode()
    except (ValueError, binascii.Error):
        return word
    if not text or not all(sign.isprintable() or sign in "\r\n\t" for sign in text):
        return word
    return HIDDEN if _text(text, depth + 1) != text else word


def _random(match: re.Match[str]) -> str:
    word = match[0]
    if _BEFORE_PUBLIC.search(match.string, max(0, match.start() - 80), match.start()) or _PUBLIC_KEY.match(word):
        return word
    return HIDDEN if _is_random(word.rstrip("=")[:_ENOUGH]) else word


@lru_cache(maxsize=8192)
def _is_random(word: str) -> bool:
    """Whether a long word is made of random signs: capitals, small letters and digits that change all the time, which
    they do in no path, no name and no number in hexadecimal."""
    kinds = ["A" if sign.isupper() else "a" if sign.islower() else "0" if sign.isdigit() else "-" for sign in word]
    if not {"A", "a", "0"} <= set(kinds):
        return False
    changes = sum(one != two for one, two in zip(kinds, kinds[1:])) / (len(kinds) - 1)
    number = len(word)
    bits = -sum(each / number * math.log2(each / number) for each in Counter(word).values())
    return changes >= _LOWEST_CHANGES and bits >= _LOWEST_BITS


def _is_environment(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(word, str) and "=" in word for word in value)


def _of_nccl(words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(_KEPT)]


def _environment(match: re.Match[str]) -> str:
    kept = ", ".join(f'"{word}"' for word in _of_nccl(_WORD.findall(match["words"])))
    return f'"env": [{kept}]'
