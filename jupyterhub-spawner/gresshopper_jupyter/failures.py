"""Failures of a server's start, in words for its user. The party at fault decides the words in the hub's log."""

from __future__ import annotations

import html

from tornado.web import HTTPError

try:
    from jupyterhub.spawner import SpawnException as _SpawnException
except ImportError:  # JupyterHub 5

    class _SpawnException(HTTPError):  # type: ignore[no-redef, misc, unused-ignore]
        def __init__(self, message: str, *, reason: str, status_code: int = 400, **_: str) -> None:
            super().__init__(status_code, message)
            self.status_code = status_code
            self.message = message


class Failure(_SpawnException):  # type: ignore[misc, unused-ignore]
    """A failed start: a sentence for the page, and the end of the server's log, if any."""

    def __init__(self, sentence: str, *, reason: str, status_code: int = 400, log: str = "") -> None:
        shown = html.escape(sentence)
        if log:
            shown += f'</p><pre class="text-start" style="text-align: left">{html.escape(log)}</pre><p>'
        super().__init__(sentence, reason=reason, message_html=shown, status_code=status_code)
        #: Whether the user's choice is at fault, not the site or Slurm.
        self.is_of_choice = reason == "options"
        # JupyterHub 5 and 6 show these attributes on their pages.
        self.jupyterhub_message = sentence
        self.jupyterhub_html_message = shown


def refused(sentence: str, reason: str = "options") -> Failure:
    """The requested resources aren't available."""
    return Failure(sentence, reason=reason)
