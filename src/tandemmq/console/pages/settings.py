"""The page of a broker's settings, with those that differ from the default first; changing one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from tandemmq.console.render import make_url
from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage.cluster import BrokerReading
from tandemmq.manage.reach import ask_each
from tandemmq.manage.settings import (
    HIDDEN,
    change_setting,
    check_change,
    describe_settings,
    is_secret_setting,
    is_tandem,
    read_settings_of,
)


async def show_settings(view: View) -> Answer:
    """Shows the settings of one broker, and the values of the others of its group where they differ."""
    cluster = await view.cluster()
    if not cluster.brokers:
        raise PageError(404, "no broker is registered")
    chosen = next(
        (one for one in cluster.brokers if one.address == view.query.get("broker")),
        (cluster.answering or cluster.brokers)[0],
    )
    group = [one for one in cluster.answering if one.target.broker_name == chosen.target.broker_name]
    asked = [chosen, *(one for one in group if one.address != chosen.address)]
    found = await ask_each(asked, lambda one: read_settings_of(view.tools, one.address))
    if found[0].answer is None:
        raise PageError(502, f"{chosen.address} does not answer: {found[0].error}")
    is_ours = is_tandem(chosen.facts)
    rows = describe_settings(found[0].answer, is_tandem=is_ours)
    others = {
        one.target.address: {row.key: row.value for row in describe_settings(one.answer, is_tandem=is_ours)}
        for one in found[1:]
        if one.answer is not None
    }
    has_all = view.query.get("all") == "1" or not is_ours
    changed = [row for row in rows if row.is_changed or row.default is None]
    listing = view.listing(
        rows if has_all or view.query.get("q") else changed,
        search=lambda row: f"{row.key} {row.value}",
        sorts={"key": lambda row: row.key.lower(), "changed": lambda row: (not row.is_changed, row.key)},
        default="changed",
    )
    return view.page(
        "settings.html",
        cluster=cluster,
        chosen=chosen,
        is_ours=is_ours,
        listing=listing,
        others=others,
        has_all=has_all,
        count=len(rows),
        keep={"broker": chosen.address, "all": "1" if view.query.get("all") == "1" else ""},
    )


async def ask_change(view: View) -> Answer:
    """Shows the current value, and after a value is given what will be changed where. A secret has no
    preview, because its value would be in the address of that page.
    """
    one, key = await view.broker(view.query.get("broker", "")), view.query.get("key", "")
    settings = await read_settings_of(view.tools, one.address)
    rows = {row.key: row for row in describe_settings(settings, is_tandem=is_tandem(one.facts))}
    if key not in rows:
        raise PageError(404, f"{one.address} shows no setting {key}")
    value = None if is_secret_setting(key) else view.query.get("value")
    if value is not None:
        check_change(key, value, is_tandem=is_tandem(one.facts))
    return view.page(
        "setting_change.html", one=one, row=rows[key], value=value, group=await _replicas_of(view, one)
    )


async def change(view: View) -> Answer:
    """Changes a setting at one broker, or at all of its group; a silent one is an error."""
    one = await view.broker(view.form.get("broker", ""))
    key, value = view.form.get("key", ""), view.form.get("value", "")
    check_change(key, value, is_tandem=is_tandem(one.facts))
    addresses = [one.address]
    if view.form.get("everywhere") == "true":
        addresses = [other.address for other in await _replicas_of(view, one)]
    remarks = await change_setting(view.tools, addresses, key, value)
    shown = HIDDEN if is_secret_setting(key) else value
    done = f"{key} is {shown} at {', '.join(addresses)}"
    return view.redirect(make_url("/settings", broker=one.address), "; ".join([done, *remarks]))


def _secrets_of(form: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the field that has the value of a secret setting."""
    return ("value",) if is_secret_setting(form.get("key", "")) else ()


async def _replicas_of(view: View, one: BrokerReading) -> list[BrokerReading]:
    """Returns all brokers of the group of this one."""
    name = one.target.broker_name
    return [other for other in (await view.cluster()).brokers if other.target.broker_name == name]


PAGES: Final = (
    Page("/settings", "Settings", show_settings, menu="Cluster"),
    Action("/settings/change", "Change a setting", change, preview=ask_change, secrets=_secrets_of),
)
