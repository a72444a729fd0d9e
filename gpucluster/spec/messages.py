"""Messages for errors: from the model's validation errors to findings with a position and a hint."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from gpucluster.spec import model, other_files
from gpucluster.spec.document import Document, Path
from gpucluster.spec.sections import backup, checks, directory, fields, kubernetes, verification
from gpucluster.text import count, did_you_mean

_MAX_SHOWN = 60
#: So many unknown keys at the top level may be typing errors.
_MOST_UNKNOWN = 3
_WORDS_FOR_TRUE = frozenset({"true", "yes", "on", "y", "True", "TRUE"})
_WORDS_FOR_FALSE = frozenset({"false", "no", "off", "n", "False", "FALSE"})

_NAME_RULE = "lower-case letters, digits and -, beginning with a letter and not ending with -"
_PATTERNS = {
    fields.NAME_PATTERN: (f"must be at most 15 {_NAME_RULE}", ""),
    fields.POOL_NAME_PATTERN: (f"must be at most 20 {_NAME_RULE}", ""),
    fields.MONITORING_HOST_PATTERN: ("must be controller, or login-<n> for a login node by its number", ""),
    backup.SCHEDULE_PATTERN: (
        "must be hourly, daily, weekly, or days of the week and times of the day",
        "Such as 02:30, Mon,Thu *-*-* 04:00:00, Mon..Fri 01,13:00",
    ),
    fields.USER_NAME_PATTERN: (
        "must be at most 32 lower-case letters, digits, _ and -, beginning with a letter or _",
        "",
    ),
    fields.PATH_PATTERN: (
        "must be an absolute path without a slash at the end",
        "Such as /mnt/home; letters, digits, . _ and - are allowed",
    ),
    fields.REGION_PATTERN: ("must be the name of a region", "Such as us-ashburn-1"),
    fields.COMPARTMENT_PATTERN: (
        "must be the OCID of a compartment",
        "It begins with ocid1.compartment.; the console shows it under Identity, Compartments",
    ),
    fields.IMAGE_PATTERN: ("must be the OCID of an image", "It begins with ocid1.image."),
    fields.VCN_PATTERN: ("must be the OCID of a virtual cloud network", "It begins with ocid1.vcn."),
    fields.SUBNET_PATTERN: ("must be the OCID of a subnet", "It begins with ocid1.subnet."),
    fields.FILE_SYSTEM_PATTERN: (
        "must be the OCID of a file system",
        "It begins with ocid1.filesystem.; for a mount target, set `server` to its address instead",
    ),
    fields.MEMORY_FABRIC_PATTERN: (
        "must be the OCID of a GPU memory fabric",
        "It begins with ocid1.computegpumemoryfabric.; list them with: oci compute compute-gpu-memory-fabric list "
        "--compartment-id TENANCY",
    ),
    fields.RESERVATION_PATTERN: (
        "must be the OCID of a capacity reservation",
        "It begins with ocid1.capacityreservation.",
    ),
    fields.TITLE_PATTERN: ("must be one line, without spaces at its start or end", ""),
    fields.DOMAIN_PATTERN: ("must be the name of an identity domain", "Letters, digits, . _ and -; at most 100"),
    fields.TAG_PATTERN: (
        "must be a namespace and a key with a period between them",
        "Such as Gpucluster.Cluster, which must exist in the tenancy",
    ),
    fields.DESCRIPTION_PATTERN: (
        "must be one line of at most 100 letters, digits, spaces and . _ : ( ) / + -",
        "It begins with a letter or a digit",
    ),
    fields.SLURM_CLUSTER_PATTERN: (
        "must be at most 40 lower-case letters, digits, _ and -, beginning with a letter",
        "",
    ),
    fields.TIMEZONE_PATTERN: ("must be the name of a time zone", "Such as UTC or Europe/Berlin"),
    fields.MODULE_PATTERN: ("must be the name of a kernel module", "Small letters, digits and _, as in /proc/modules"),
    fields.PYTHON_PATTERN: ("must be a version of Python, 3.11 or newer", 'Such as "3.12", in quotes'),
    fields.WORD_PATTERN: ("must be one word", ""),
    fields.VERSION_PATTERN: ("must be a version", 'Such as "4.1.2", in quotes'),
    kubernetes.RELEASE_PATTERN: ("must be a release of Kubernetes, 1.20.0 or newer", 'Three numbers, such as "1.34.2"'),
    kubernetes.ADDON_VERSION_PATTERN: (
        "must be a version of an add-on",
        "Such as v1.17.2, with the v, or null for the one that OKE chooses",
    ),
    fields.BRANCH_PATTERN: ("must be the number of a driver branch", 'Such as "580", in quotes'),
    fields.SHA256_PATTERN: ("must be a SHA-256: 64 digits of 0 to 9 and a to f", "sha256sum FILE prints it"),
    fields.DOMAIN_URL_PATTERN: (
        "must be the https:// URL of an identity domain, without a path",
        "Such as https://idcs-0123456789abcdef.identity.oraclecloud.com",
    ),
    fields.URL_PATTERN: ("must be a URL without a password", "Such as https://mirror.example/docker"),
    fields.FINGERPRINT_PATTERN: ("must be the fingerprint of a key: 40 hexadecimal digits", "gpg --show-keys FILE"),
    fields.NO_PROXY_PATTERN: ("must be a host, a domain or a network", "Such as .corp.example or 10.0.0.0/8"),
    fields.ELASTIC_COMPARTMENT_PATTERN: (
        "must be the OCID of a compartment, or create",
        "It begins with ocid1.compartment.; `create` makes one for elastic nodes",
    ),
    checks.CHECK_PATTERN: ("must be the name of a check", "docs/reference/checks.md lists them"),
    verification.PROGRAM_PATTERN: (
        "must be the absolute path of a program",
        "Letters, digits and . _ + @ - are allowed",
    ),
    verification.CONTAINER_PATTERN: ("must be the address or the path of a container image, without spaces", ""),
    verification.MPI_PATTERN: ("must be a name as `srun --mpi=list` prints it", "Such as pmix"),
    directory.SERVER_PATTERN: ("must be the URL of a server with TLS", "Such as ldaps://ldap.example.com"),
    directory.DN_PATTERN: (
        "must be the name (DN) of an entry, without # ; quotes and braces",
        "Such as dc=example,dc=com",
    ),
    directory.GROUP_PATTERN: (
        "must be the name of a group: letters, digits, blanks, `.`, `_` and `-`",
        "Without the domain: hpc-users, and not EXAMPLE\\hpc-users",
    ),
    directory.ATTRIBUTE_PATTERN: ("must be the name of an attribute", "Such as sshPublicKey"),
    fields.IMAGE_NAME_PATTERN: ("must be the name of an image", "Such as registry.example/horovod:0.28.1"),
}


def report(document: Document, error: ValidationError) -> set[Path]:
    """Add every validation error to the document; return the paths whose values can't be used."""
    invalid: set[Path] = set()
    for details in error.errors(include_url=False):
        path: Path = tuple(part for part in details["loc"])
        invalid.add(path)
        if any(path[:length] in document.invalid for length in range(len(path) + 1)):
            continue  # the reader has reported it
        if details["type"] != "missing" and path not in document.values:
            continue  # a default that depends on another value; that one is reported
        if details["type"] == "too_short" and len(details["input"]) >= details["ctx"]["min_length"]:
            continue  # it counts its valid entries only; the invalid ones are reported
        message, hint = _message(details, document, path)
        document.error(path, message, hint, key=details["type"] == "extra_forbidden")
    return invalid


def another_file(data: dict[str, Any]) -> tuple[str, str]:
    """Message and hint if a file belongs to another program; both are empty if it is a cluster file.

    A list of its unknown keys would be as long as the file, and would tell its reader less.
    """
    known = set(model.ClusterSpec.model_fields)
    unknown = set(map(str, data)) - known
    other = other_files.by_keys(data, unknown)
    if other is not None:
        return other.message, other.hint
    hint = other_files.OtherFile("").hint
    if len(unknown) > _MOST_UNKNOWN and len(unknown) > len(data) - len(unknown):
        some = ", ".join(list(map(shown, data))[:3])
        return f"not a cluster file: it begins with the keys {some}", hint
    return "", ""


def shown(value: Any) -> str:
    """A value as messages quote it: on one line, cut if it is long."""
    if value is None:
        return "nothing"
    if isinstance(value, (dict, tuple, list)):
        return "keys with values" if isinstance(value, dict) else "a list"
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, (str, bool)) else str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def field_at(path: Path) -> FieldInfo | None:
    """The field of the model at `path`; None if there is none."""
    current: Any = model.ClusterSpec
    info: FieldInfo | None = None
    for part in path:
        current = _unwrapped(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            info = current.model_fields.get(str(part))
            if info is None:
                return None
            current = info.annotation
        elif get_origin(current) in (dict, tuple):
            current = _element(current)
        else:
            return None
    return info


def keys_at(path: Path) -> list[str]:
    """The keys that the model has at `path`; empty where any key is allowed."""
    current: Any = model.ClusterSpec
    for part in path:
        current = _unwrapped(current)
        if isinstance(current, type) and issubclass(current, BaseModel):
            info = current.model_fields.get(str(part))
            current = info.annotation if info else None
        elif get_origin(current) in (dict, tuple):
            current = _element(current)
    current = _unwrapped(current)
    return list(current.model_fields) if isinstance(current, type) and issubclass(current, BaseModel) else []


def _element(annotation: Any) -> Any:
    """`X` of `dict[str, X]` and of `tuple[X, ...]`."""
    return get_args(annotation)[1 if get_origin(annotation) is dict else 0]


def _unwrapped(annotation: Any) -> Any:
    """`X` of `X | None`."""
    rest = [part for part in get_args(annotation) if part is not type(None)]
    return rest[0] if type(None) in get_args(annotation) and len(rest) == 1 else annotation


def _message(details: ErrorDetails, document: Document, path: Path) -> tuple[str, str]:
    kind, context = details["type"], details.get("ctx", {})
    message_of = _BY_TYPE.get(kind)
    if details["input"] is None and kind not in ("missing", "extra_forbidden"):
        return "has no value", _example(path) or "Set a value, or delete the line"
    return message_of(details["input"], context, document, path) if message_of else (details["msg"], "")


def _example(path: Path) -> str:
    info = field_at(path)
    if info is None or not path:
        return ""
    if not info.examples:
        return f"{info.description}" if info.description else ""
    return f"Write, for example, `{path[-1]}: {_yaml(info.examples[0])}`"


def _yaml(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_yaml(item)}' for key, item in value.items())}}}"
    return json.dumps(value) if not isinstance(value, list) else f"[{', '.join(_yaml(item) for item in value)}]"


def _missing(_value: Any, _context: Any, _document: Document, path: Path) -> tuple[str, str]:
    return "is missing", _example(path)


def _unknown(_value: Any, _context: Any, _document: Document, path: Path) -> tuple[str, str]:
    parent, key = path[:-1], str(path[-1])
    known = keys_at(parent)
    hint = did_you_mean(key, known)
    if not hint:
        sections = [section or "the top level" for section in _sections_with(key)]
        if sections:
            hint = f"It belongs under {' or '.join(sections[:3])}"
    return "unknown key", hint or f"Known here: {', '.join(known)}"


def _sections_with(key: str) -> list[str]:
    return [path for kind, paths in model.sections().items() if key in kind.model_fields for path in paths]


def _text(value: Any, _context: Any, document: Document, path: Path) -> tuple[str, str]:
    if isinstance(value, (dict, tuple)):
        return f"must be text; got {shown(value)}", ""
    spelled = document.texts.get(path, shown(value))
    return f"must be text; got {spelled}", f'Write it in quotes: "{spelled}"'


def _whole_number(value: Any, _context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    hint = ""
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9]{1,18}\s*", value):
        # YAML reads 010 as text, or as the number 8, according to its release: the reader keeps it as text.
        hint = f"Write it without {'zeros before it' if re.match('[-+]?0[0-9]', value) else 'quotes'}: {int(value)}"
    if isinstance(value, str) and re.fullmatch(r"[-+]?[0-9]{19,}", value):
        return f"must be a whole number of fewer digits; got {value[:_MAX_SHOWN]}", ""
    return f"must be a whole number; got {shown(value)}", hint


def _number(value: Any, _context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    hint = ""
    if isinstance(value, str) and re.fullmatch(r"\s*[-+]?[0-9]{1,18}(\.[0-9]+)?\s*", value):
        hint = f"Write it without quotes: {value.strip()}"
    return f"must be a number; got {shown(value)}", hint


def _truth(value: Any, _context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    hint = ""
    if isinstance(value, str) and value in _WORDS_FOR_TRUE | _WORDS_FOR_FALSE:
        hint = f"Write {'true' if value in _WORDS_FOR_TRUE else 'false'}, without quotes"
    return f"must be true or false; got {shown(value)}", hint


def _list(value: Any, _context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    hint = f"Write [{value}]" if isinstance(value, (str, int)) else "Begin each entry with -"
    return f"must be a list; got {shown(value)}", hint


def _mapping(value: Any, _context: Any, _document: Document, path: Path) -> tuple[str, str]:
    known = keys_at(path)
    return f"must be keys with values; got {shown(value)}", f"Keys: {', '.join(known)}" if known else ""


def _choice(value: Any, context: Any, document: Document, path: Path) -> tuple[str, str]:
    info = field_at(path)
    kind = _unwrapped(info.annotation) if info else None
    kind = _element(kind) if get_origin(kind) in (dict, tuple) else kind
    choices = [str(choice) for choice in get_args(kind) or (context.get("expected"),) if choice != ""]
    spelled = document.texts.get(path, shown(value))
    if not isinstance(value, str) and spelled in choices:
        return f"must be text, and {spelled} without quotes is a number", f'Write it in quotes: "{spelled}"'
    return f"must be {' or '.join(choices)}; got {shown(value)}", did_you_mean(str(value), choices)


def _pattern(value: Any, context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    message, hint = _PATTERNS[context["pattern"]]
    return f"{message}; got {shown(value)}", hint


def _bound(relation: str, key: str) -> Callable[[Any, Any, Document, Path], tuple[str, str]]:
    def message(value: Any, context: Any, _document: Document, _path: Path) -> tuple[str, str]:
        return f"must be {relation} {context[key]}; got {shown(value)}", ""

    return message


def _too_short(value: Any, context: Any, _document: Document, path: Path) -> tuple[str, str]:
    return (
        f"must have at least {count(context.get('min_length', 1), 'entry', 'entries')}; it has {len(value)}",
        _example(path),
    )


def _too_long(value: Any, context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    return f"must have at most {count(context['max_length'], 'entry', 'entries')}; it has {len(value)}", ""


def _empty(_value: Any, _context: Any, _document: Document, path: Path) -> tuple[str, str]:
    return "is empty", _example(path)


def _long_text(value: Any, context: Any, _document: Document, _path: Path) -> tuple[str, str]:
    return f"must have at most {context['max_length']} characters; it has {len(value)}", ""


_BY_TYPE: dict[str, Callable[[Any, Any, Document, Path], tuple[str, str]]] = {
    "missing": _missing,
    "extra_forbidden": _unknown,
    "string_type": _text,
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "float_type": _number,
    "bool_type": _truth,
    "tuple_type": _list,
    "dict_type": _mapping,
    "model_type": _mapping,
    "model_attributes_type": _mapping,
    "literal_error": _choice,
    "string_pattern_mismatch": _pattern,
    "greater_than": _bound("above", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than_equal": _bound("at most", "le"),
    "multiple_of": _bound("a multiple of", "multiple_of"),
    "too_short": _too_short,
    "too_long": _too_long,
    "string_too_short": _empty,
    "string_too_long": _long_text,
}
