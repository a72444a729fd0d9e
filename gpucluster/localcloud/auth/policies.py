"""OCI's policies and dynamic groups: the policy language, and which permissions are granted.

Pure: the content of the store comes in as values. permissions.toml has the tables: the permissions of a verb on a
resource-type, and the permissions that an operation requires. A statement that can't be parsed is rejected when it is
created, so no statement grants less than its text.

Supported: subjects of every kind (only dynamic groups and any-user ever match), verbs or permissions, individual
resource-types and families, compartments by OCID and by path, and conditions with `=` and `!=` on the variables
request.permission, request.operation, target.cluster.id, target.tag-namespace.name and
target.resource.tag.<namespace>.<key>.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

VERBS = ("inspect", "read", "use", "manage")
DEFAULT_DOMAIN = "Default"
INHERITED = "inherited"
_SUBJECTS = ("dynamic-group", "group", "service", "any-user", "any-group")
_TOKEN = re.compile(r"\s+|(?P<quoted>'[^']*'|\"[^\"]*\")|(?P<word>[A-Za-z0-9_.:@+*-]+)|(?P<sign>!=|[={},/])")


class PolicySyntaxError(ValueError):
    """A statement or a rule that can't be parsed. The message names the position."""


# --- the tables -----


@dataclass(frozen=True)
class Tables:
    """permissions.toml.

    Args:
        types: resource-type (families included) -> verb -> permissions, with those of the lesser verbs.
        operations: permissions that an operation requires, or `INHERITED`; only the operator may do all others.
        launch: further permissions that a launch requires, by what it asks for.
        operator_only: operations that no policy grants.
        unlisted: permissions that no verb includes.
    """

    types: Mapping[str, Mapping[str, frozenset[str]]]
    operations: Mapping[str, tuple[str, ...] | str]
    launch: Mapping[str, tuple[str, ...]]
    operator_only: frozenset[str]
    unlisted: frozenset[str]


@cache
def tables() -> Tables:
    """The tables. The file is read once."""
    raw = tomllib.loads(Path(__file__).with_name("permissions.toml").read_text())
    types = {name: _adding_up(verbs) for name, verbs in raw["types"].items()}
    families = {
        name: {
            verb: frozenset[str]().union(*(types[member][verb] for member in members), extra[verb]) for verb in VERBS
        }
        for name, members in raw["families"].items()
        for extra in [_adding_up(raw["extra"].get(name, {}))]
    }
    everything = {verb: frozenset[str]().union(*(by_verb[verb] for by_verb in types.values())) for verb in VERBS}
    return Tables(
        types={**types, **families, "all-resources": everything},
        operations={name: need if need == INHERITED else tuple(need) for name, need in raw["operations"].items()},
        launch={name: tuple(need) for name, need in raw["launch"].items()},
        operator_only=frozenset(name for names in raw["operator"].values() for name in names),
        unlisted=frozenset(name for names in raw["unlisted"].values() for name in names),
    )


def _adding_up(verbs: Mapping[str, Iterable[str]]) -> dict[str, frozenset[str]]:
    by_verb: dict[str, frozenset[str]] = {}
    so_far: frozenset[str] = frozenset()
    for verb in VERBS:
        so_far |= frozenset(verbs.get(verb, ()))
        by_verb[verb] = so_far
    return by_verb


# --- conditions -----


@dataclass(frozen=True)
class Condition:
    """`variable = 'value'` or `!=`; or `any {...}`, `all {...}` of such.

    A variable that the request does not have makes it false, also with `!=`. Upper and lower case are equal (docs:
    Conditions).
    """

    variable: str = ""
    equal: bool = True
    value: str = ""
    every: bool = True
    parts: tuple[Condition, ...] = ()

    def holds(self, facts: Mapping[str, str]) -> bool:
        """Whether the condition is true for these variables."""
        if self.variable:
            known = facts.get(self.variable)
            return known is not None and (known.lower() == self.value.lower()) is self.equal
        return all(part.holds(facts) for part in self.parts) if self.every else any(p.holds(facts) for p in self.parts)


class _Tokens:
    """The tokens of a text, read one after another."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._next = 0
        place = 0
        while place < len(text):
            match = _TOKEN.match(text, place)
            if match is None:
                raise PolicySyntaxError(f"{text[place : place + 20]!r} can't be read")
            if match.lastgroup:
                self._tokens.append(match.group())
            place = match.end()

    def peek(self) -> str:
        """The next token; empty at the end."""
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def take(self, *allowed: str) -> str:
        """Read the next token. It must be one of `allowed` (in upper or lower case), if any are given."""
        token = self.peek()
        if not token or (allowed and token.lower() not in allowed):
            expected = " or ".join(f"`{word}`" for word in allowed) or "more"
            raise PolicySyntaxError(f"{expected} is expected {f'instead of `{token}`' if token else 'at the end'}")
        self._next += 1
        return token

    def skip(self, *words: str) -> bool:
        """Skip the next token if it is one of these; True if it was."""
        if self.peek().lower() in words:
            self._next += 1
            return True
        return False

    def name(self) -> str:
        """Read a name, with or without quotes."""
        token = self.take()
        if token in ("=", "!=", "{", "}", ",", "/"):
            raise PolicySyntaxError(f"a name is expected instead of `{token}`")
        return _bare(token)

    def end(self) -> None:
        """Raise if there is another token."""
        if self.peek():
            raise PolicySyntaxError(f"nothing may follow before `{self.peek()}`")


def _bare(token: str) -> str:
    return token[1:-1] if token[0] in "'\"" else token


def _condition(words: _Tokens) -> Condition:
    if words.peek().lower() in ("any", "all"):
        every = words.take().lower() == "all"
        words.take("{")
        parts = [_condition(words)]
        while words.skip(","):
            parts.append(_condition(words))
        words.take("}")
        return Condition(every=every, parts=tuple(parts))
    variable = words.name()
    equal = words.take("=", "!=") == "="
    value = words.take()
    if value[0] not in "'\"":
        raise PolicySyntaxError(f"the value of {variable} must be in quotes")
    return Condition(variable.lower(), equal, _bare(value))


@lru_cache(maxsize=1024)
def matching_rule(text: str) -> Condition:
    """The rule of a dynamic group: `instance.id = '...'`, `instance.compartment.id = '...'` or
    `tag.<namespace>.<key>.value = '...'`, or `Any {...}`, `All {...}` of such.

    Raises:
        PolicySyntaxError: it is not such a rule.
    """
    words = _Tokens(text)
    rule = _condition(words)
    words.end()
    for variable in _variables(rule):
        if not re.fullmatch(r"(instance|resource)\.(id|compartment\.id)|tag\.[\w-]+\.[\w-]+\.value", variable):
            raise PolicySyntaxError(f"a matching rule has no variable {variable}")
    return rule


def _variables(rule: Condition) -> list[str]:
    return [rule.variable] if rule.variable else [name for part in rule.parts for name in _variables(part)]


# --- statements -----


@dataclass(frozen=True)
class PolicyStatement:
    """`Allow <subjects> to <verb> <resource-type> in <place> [where <condition>]`.

    Args:
        kind: dynamic-group, group, service, any-user or any-group. `subjects`: (domain, name), or ("", OCID).
        permissions: what it permits.
        place: "tenancy"; the OCID of a compartment; or its path from the policy's compartment, such as "A:B".
    """

    kind: str
    subjects: tuple[tuple[str, str], ...]
    permissions: frozenset[str]
    place: str
    condition: Condition | None = None

    def names(self, domain: str, name: str, ocid: str) -> bool:
        """Whether a dynamic group is a subject. Names are equal in upper and lower case."""
        if self.kind == "any-user":
            return True
        identities = ((domain.lower(), name.lower()), ("", ocid.lower()))
        return self.kind == "dynamic-group" and any((d.lower(), n.lower()) in identities for d, n in self.subjects)


@lru_cache(maxsize=4096)
def statement(text: str) -> PolicyStatement:
    """Parse a statement.

    Raises:
        PolicySyntaxError: it can't be parsed, or names a resource-type that the local cloud does not know.
    """
    words = _Tokens(text)
    words.take("allow")
    kind = words.take(*_SUBJECTS).lower()
    subjects = _subjects(words) if kind not in ("any-user", "any-group") else ()
    words.take("to")
    permissions = _permissions(words)
    words.take("in")
    place = "tenancy"
    if words.take("tenancy", "compartment").lower() == "compartment":
        words.skip("id")
        place = words.name()
    condition = _condition(words) if words.skip("where") else None
    words.end()
    return PolicyStatement(kind, subjects, permissions, place, condition)


def _subjects(words: _Tokens) -> tuple[tuple[str, str], ...]:
    subjects = []
    while True:
        if words.skip("id"):
            subjects.append(("", words.name()))
        else:
            domain, name = DEFAULT_DOMAIN, words.name()
            if words.skip("/"):
                domain, name = name, words.name()
            subjects.append((domain, name))
        if not words.skip(","):
            return tuple(subjects)


def _permissions(words: _Tokens) -> frozenset[str]:
    known = tables().types
    if words.skip("{"):
        names = [words.name().upper()]
        while words.skip(","):
            names.append(words.name().upper())
        words.take("}")
        strange = sorted(set(names) - known["all-resources"]["manage"] - tables().unlisted)
        if strange:
            raise PolicySyntaxError(f"there is no permission {', '.join(strange)}")
        return frozenset(names)
    verb = words.take(*VERBS).lower()
    resource = words.name().lower()
    if resource not in known:
        raise PolicySyntaxError(f"there is no resource-type {resource}")
    return known[resource][verb]


# --- permissions -----


@dataclass(frozen=True)
class RequiredPermission:
    """A permission that an operation requires.

    Args:
        compartment: where it is required.
        facts: variables of the request, in addition to request.permission and request.operation.
    """

    permission: str
    compartment: str
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DynamicGroup:
    """A dynamic group of the store."""

    ocid: str
    name: str
    rule: str


@dataclass(frozen=True)
class StoredPolicy:
    """A policy of the store."""

    compartment: str
    statements: tuple[str, ...]


@dataclass(frozen=True)
class PolicySet:
    """All policies and dynamic groups.

    Args:
        ancestors: a compartment and those above it; itself first and the tenancy last.
        child: the OCID of the compartment with this name in another one; None if there is none.
    """

    groups: tuple[DynamicGroup, ...]
    policies: tuple[StoredPolicy, ...]
    ancestors: Callable[[str], tuple[str, ...]]
    child: Callable[[str, str], str | None]

    def missing(
        self, operation: str, needs: Iterable[RequiredPermission], principal: Mapping[str, str]
    ) -> list[RequiredPermission]:
        """The required permissions that no statement grants; an empty list permits the operation.

        Args:
            principal: the variables of matching rules, for the instance that asks.
        """
        matching = [group for group in self.groups if matching_rule(group.rule).holds(principal)]
        grants = [
            (policy, read)
            for policy in self.policies
            for read in map(statement, policy.statements)
            if read.kind == "any-user" or any(read.names(DEFAULT_DOMAIN, g.name, g.ocid) for g in matching)
        ]
        return [need for need in needs if not any(self._grants(p, s, operation, need) for p, s in grants)]

    def _grants(self, policy: StoredPolicy, read: PolicyStatement, operation: str, need: RequiredPermission) -> bool:
        if need.permission not in read.permissions:
            return False
        if self.compartment_of(read.place, policy.compartment) not in self.ancestors(need.compartment):
            return False
        facts = {**need.facts, "request.permission": need.permission, "request.operation": operation}
        return read.condition is None or read.condition.holds(facts)

    def compartment_of(self, place: str, compartment: str) -> str | None:
        """The OCID of a statement's compartment; None if it is not the policy's compartment or below it."""
        if place == "tenancy":
            return compartment if self.ancestors(compartment) == (compartment,) else None
        if place.startswith("ocid1."):
            return place if compartment in self.ancestors(place) else None
        current: str | None = compartment
        for name in place.split(":"):
            current = self.child(current, name) if current else None
        return current


def check_statements(texts: Iterable[Any], compartment: str, policies: PolicySet) -> None:
    """Check the statements of a policy before it is stored.

    Raises:
        PolicySyntaxError: a statement can't be enforced; the message has the statement.
    """
    for text in texts:
        if not isinstance(text, str):
            raise PolicySyntaxError(f"a statement must be a text, not {text!r}")
        try:
            read = statement(text)
        except PolicySyntaxError as error:
            raise PolicySyntaxError(f"The policy statement can't be parsed: {error}: {text}") from error
        if policies.compartment_of(read.place, compartment) is None:
            raise PolicySyntaxError(
                f"Compartment {{{read.place}}} does not exist or is not part of the policy compartment subtree: {text}"
            )
