"""The palette: every action of the screen that is shown, by its words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial

from textual.command import DiscoveryHit, Hit, Hits, Provider

from rsi_tui.app.actions import BROWSE, LIBRARY, LIVE, PAGER, PALETTE, REPORT, Action, remapped
from rsi_tui.app.browse import BrowseScreen
from rsi_tui.app.library import LibraryScreen
from rsi_tui.app.live import LiveScreen
from rsi_tui.app.pager import ReportPager
from rsi_tui.config import AppSettings

_ONLY_KEYS = ("move", "fold")
"""actions that make sense under a key alone"""


class Commands(Provider):
    """Feeds Textual's palette from the registry."""

    def _actions(self) -> tuple[Action, ...]:
        place = {LiveScreen: LIVE, BrowseScreen: BROWSE, LibraryScreen: LIBRARY, ReportPager: REPORT}
        actions = next((found for kind, found in place.items() if isinstance(self.screen, kind)), PAGER)
        settings: AppSettings = getattr(self.app, "settings", AppSettings())
        found = [a for a in remapped(actions, settings.keys) if not a.id.startswith(_ONLY_KEYS) and a.id != PALETTE.id]
        return tuple({a.id: a for a in found}.values())

    async def discover(self) -> Hits:
        async for action in self._each():
            yield DiscoveryHit(self._title(action), partial(self._run, action), help=action.help)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        async for action in self._each():
            text = f"{self._title(action)}: {action.help}"
            if (score := matcher.match(text)) > 0:
                yield Hit(score, matcher.highlight(text), partial(self._run, action), help=f"key {action.shown}")

    async def _each(self) -> AsyncIterator[Action]:
        for action in self._actions():
            yield action

    @staticmethod
    def _title(action: Action) -> str:
        return f"{(action.label or action.name.replace('_', ' ').capitalize())} ({action.shown})"

    async def _run(self, action: Action) -> None:
        await self.app.run_action(action.id, default_namespace=self.screen)
