"""A syncer's HTTP interface, as far as a watcher needs it: JSON answers and the stream of events."""

from __future__ import annotations

import http.client
import json
import math
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

from ._errors import NotASyncerError, RefusedError, UnreachableError

# Longest wait for an answer, and for the next bytes of the stream, in seconds. The stream sends something every second.
_ANSWER_S = 30.0
# Largest accepted answer, and largest line of the stream, in bytes.
_ANSWER_BYTES_MAX = 64 << 20
_LINE_BYTES_MAX = 16 << 20
# Names of pages that links to a run may have at their end.
_PAGES = ("dashboard", "teach", "teach.html", "scale", "scale.html", "v1/ws")


class LostError(Exception):
    """The connection is gone, or the syncer does not answer now; the message has the reason."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Redirects are not followed, because the token would follow them."""

    def redirect_request(self, *args: Any) -> None:
        return None


class Syncer:
    """One run of a syncer, by its address.

    Raises:
        ValueError: The address is malformed.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.page = page_of(url)
        self._headers = {} if token is None else {"authorization": f"Bearer {token}"}
        self._opener = urllib.request.build_opener(_NoRedirects)

    def greet(self) -> dict[str, Any]:
        """Returns the run's status, at the first contact.

        Raises:
            UnreachableError: Nothing answers.
            NotASyncerError: What answers is not a run of a syncer.
            RefusedError: The token is wrong, or one is needed.
        """
        try:
            status: dict[str, Any] = self.get("v1/status")
        except LostError as lost:
            raise UnreachableError(
                f"no syncer answers at {self.page} ({lost}): check the address, and that the syncer runs"
            ) from None
        if "authorization" in self._headers:
            # The routes of a watcher are public. This one answers only the owner.
            self._check_token()
        return status

    def get(self, path: str) -> Any:
        """Returns an answer in JSON.

        Raises:
            LostError: The syncer does not answer now.
            NotASyncerError: The answer is of something else.
            RefusedError: The token is wrong, or one is needed.
        """
        try:
            with self._open(path) as answer:
                text = answer.read(_ANSWER_BYTES_MAX)
        except NotASyncerError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise LostError(_reason(error)) from None
        told = _json(text)
        if not isinstance(told, dict) or (path == "v1/status" and not isinstance(told.get("run"), str)):
            raise NotASyncerError(f"{self.page} is not a run of a syncer: it answers /{path} with something else")
        return told

    def events(self) -> Iterator[tuple[str, Any]]:
        """Yields names and contents of the events from now on, until the stream ends.

        Raises:
            LostError: The connection is lost.
            NotASyncerError: The answer is of something else.
            RefusedError: The token is wrong, or one is needed.
        """
        try:
            with self._open("v1/events") as answer:
                name = ""
                parts: list[bytes] = []
                while line := answer.readline(_LINE_BYTES_MAX):
                    key, _, value = line.rstrip(b"\r\n").partition(b":")
                    value = value.removeprefix(b" ")
                    if not line.strip():
                        if name and parts:
                            yield name, _json(b"\n".join(parts))
                        name, parts = "", []
                    elif key == b"event":
                        name = value.decode(errors="replace")
                    elif key == b"data":
                        parts.append(value)
        except NotASyncerError:
            raise
        except (OSError, http.client.HTTPException) as error:
            raise LostError(_reason(error)) from None

    def _open(self, path: str) -> Any:
        request = urllib.request.Request(f"{self.page}{path}", headers=self._headers)
        try:
            return self._opener.open(request, timeout=_ANSWER_S)
        except urllib.error.HTTPError as error:
            with error:
                raise self._refusal(error) from None

    def _refusal(self, error: urllib.error.HTTPError) -> Exception:
        """Returns the error for an answer with an error code."""
        if error.code in (401, 403):
            given = "refused the token" if self._headers else "wants a token"
            return RefusedError(f"{self.page} {given} (HTTP {error.code}): give that of the run's owner with --token")
        if 300 <= error.code < 400:
            return NotASyncerError(f"{self.page} redirects to {error.headers['location']}: give that address")
        if error.code == 404:
            return NotASyncerError(f"{self.page} is not a run of a syncer (HTTP 404){self._names()}")
        line = error.read(200).decode(errors="replace").strip().split("\n")[0]
        return LostError(f"HTTP {error.code}: {line}")

    def _names(self) -> str:
        """Returns a remark with the runs of this server, if it has several."""
        try:
            with self._opener.open(f"{self.page}v1/runs", timeout=_ANSWER_S) as answer:
                told = _json(answer.read(_ANSWER_BYTES_MAX))
            names = ", ".join(run["name"] for run in told["runs"][:8])
        except (OSError, http.client.HTTPException, LostError, KeyError, TypeError):
            return ": check the address"
        return f": give the address of one run, {self.page}runs/NAME/, where NAME is one of {names or '(none yet)'}"

    def _check_token(self) -> None:
        try:
            self._open("v1/invites").close()
        except (LostError, NotASyncerError, OSError, http.client.HTTPException):
            return


def page_of(url: str) -> str:
    """Returns the address of a run's page, with a slash at its end, from any form of the syncer's address.

    Raises:
        ValueError: The address is malformed.
    """
    text = url.strip()
    if "://" not in text:
        text = f"http://{text}"
    try:
        parts = urllib.parse.urlsplit(text)
        is_host = bool(parts.hostname) and parts.port != 0 and not any(mark in text for mark in " \t\r\n\\@")
    except ValueError:
        is_host = False
    if not is_host:
        raise ValueError(f"{url!r} is not an address: give host:port or a link to the syncer")
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    if scheme not in ("http", "https"):
        raise ValueError(f"{parts.scheme}:// does not lead to a syncer: use ws://, wss://, http:// or https://")
    if "://" not in url and parts.port is None:
        raise ValueError(f"{url!r} names no port: write host:port, or put http:// or https:// before it")
    path = parts.path.rstrip("/")
    for page in _PAGES:
        path = path.removesuffix(f"/{page}")
    return f"{scheme}://{parts.netloc}{path}/"


def finite(value: object) -> float | None:
    """Returns a number of an answer, or None if it is none, or not finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return value


def _json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _reason(error: BaseException) -> str:
    inner = error.reason if isinstance(error, urllib.error.URLError) else error
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__
