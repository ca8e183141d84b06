"""All pages of the console, and how to write one.

A module `pages/NAME.py` describes pages and actions in a constant, and is added to `MODULES` below, whose
order is that of the menu:

    async def show_topics(view: View) -> Answer:
        topics = await read_topics(view.tools)               # from tandemmq.manage; signed as the user
        listing = view.listing(topics, search=lambda one: one.name, sorts={"name": lambda one: one.name})
        return view.page("topics.html", listing=listing)

    async def ask_delete(view: View) -> Answer:              # GET: what would happen
        name = view.path["topic"]
        return view.confirm(f"Delete {name}?", button="Delete", back="/topics")

    async def delete(view: View) -> Answer:                  # POST
        await delete_topic(view.tools, view.path["topic"])
        return view.redirect("/topics", f"{view.path['topic']} is deleted")

    PAGES: Final = (
        Page("/topics", "Topics", show_topics, menu="Data"),
        Action("/topics/{topic}/delete", "Delete a topic", delete, preview=ask_delete),
    )

- `View` (console/view.py) has the request (`path`, `query`, `form`, `fields`), the user (`user`,
  `may_change`), the cluster (`tools`, `cluster()`, `targets()`, `sampler`), the answers
  (`page`, `redirect`, `confirm`, `download`, `listing`). Menu sections: `view.SECTIONS`.
- A page is served only after log-in if the cluster has access control; `Page(is_open=True)` is an exception.
  Raise a TandemError, or PageError(status, text), to show an error; NotPermitted leads a visitor to the
  log-in.
- Read several brokers with `manage.reach.ask_each`: concurrently, each within 1.5 s, errors as values. Ask
  only `await view.targets()`, the brokers that answer.
- A feature that not every broker has: `await manage.reach.if_supported(call(...))` returns None when the
  broker does not support it.
- Template: `{% extends "base.html" %}`, `{% import "parts.html" as parts %}`, block `content`, one h1. Macros
  in parts.html: csrf, post_button, link_button, state, search, sort_header, pager, chart. Filters: time,
  bytes, number, duration (seconds), share, part (a name as one part of a path). `url(path, q=...)` makes a
  link with a query. Show buttons only `{% if view.may_change %}`.
- Style: tables in `<div class="wide" tabindex="0" role="region" aria-label="...">`, which scrolls at 360 px,
  also by the keyboard; numbers in cells of class `number`, long texts in cells of class `any`; facts in
  `<dl class="facts">`, key figures in `<dl class="figures">`, forms in `<div class="fields">`, a label for
  each input. The policy forbids style attributes and inline scripts.
- Limit every list and say so on the page. Never mark anything from the cluster as safe.
"""

from __future__ import annotations

from typing import Final

from tandemmq.console.pages import (
    access,
    audit_list,
    brokers,
    dead_letters,
    delayed,
    groups,
    messages,
    overview,
    pipelines,
    refusals,
    services,
    settings,
    topics,
    transactions,
)
from tandemmq.console.view import Action, Page

MODULES: Final = (
    overview,
    brokers,
    topics,
    groups,
    messages,
    dead_letters,
    delayed,
    transactions,
    access,
    refusals,
    pipelines,
    services,
    settings,
    audit_list,
)

ALL: Final[tuple[Page | Action, ...]] = tuple(one for module in MODULES for one in module.PAGES)
