"""Access: the users, policies and accounts of the brokers, and who may use a resource."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, ParamSpec

from tandemmq.api import broker_admin
from tandemmq.api.calls import Call
from tandemmq.broker.access.auth_table import ALLOW, DENY, DISABLE, ENABLE, NORMAL, SUBJECT_PREFIX, SUPER
from tandemmq.broker.access.needs import GROUP, NAMES, TOPIC
from tandemmq.client.changes import change_each
from tandemmq.console.render import quote_part
from tandemmq.console.view import Action, Answer, Page, PageError, View
from tandemmq.manage import access as rules
from tandemmq.protocol.bodies.tables import AclInfo, EntryInfo, PolicyInfo, UserInfo

P = ParamSpec("P")

ROWS_MAX: Final = 1000
"""The most users, policies or accounts on one page; the page says so."""
PERMISSIONS: Final = ("DENY", "PUB", "SUB", "PUB|SUB")


async def show_access(view: View) -> Answer:
    """Shows who exists, what the rules are, and which brokers check them."""
    access = await _access(view)
    listing = view.listing(
        rules.rows_of_users(access),
        search=lambda user: user.name,
        sorts={"name": lambda user: user.name, "type": lambda user: user.user_type},
    )
    policies, accounts = rules.rows_of_policies(access), rules.rows_of_accounts(access)
    return view.page(
        "access.html",
        access=access,
        listing=listing,
        policies=policies[:ROWS_MAX],
        policy_count=len(policies),
        accounts=accounts[:ROWS_MAX],
        account_count=len(accounts),
        problems=rules.problems_of(access),
    )


async def show_check(view: View) -> Answer:
    """Shows who may use a topic or group, and why."""
    kind = GROUP if view.query.get("kind") == GROUP else TOPIC
    name, host = view.query.get("name", "").strip(), view.query.get("host", "").strip()
    access = await _access(view)
    verdicts = rules.judge(access, kind, name, host) if name else []
    return view.page(
        "access_check.html",
        kind=kind,
        name=name,
        host=host,
        verdicts=verdicts[:ROWS_MAX],
        verdict_count=len(verdicts),
        actions=[label for label, _ in rules.ACTIONS],
        problems=rules.problems_of(access),
    )


async def show_user(view: View) -> Answer:
    """Shows one user: its state, its policies, and the forms that change them."""
    name = view.path["user"]
    access = await _access(view)
    users = [user for user in rules.rows_of_users(access) if user.name == name]
    if not users:
        raise PageError(404, f"no broker that answers has the user {name}")
    return view.page(
        "access_user.html",
        title=name,
        name=name,
        users=users,
        policies=[row for row in rules.rows_of_policies(access) if row.subject == SUBJECT_PREFIX + name],
        actions=list(NAMES),
        problems=rules.problems_of(access),
    )


async def show_new_user(view: View) -> Answer:
    """Shows the form of a new user."""
    return view.page("access_new_user.html")


async def create_user(view: View) -> Answer:
    """Creates a user at every broker."""
    name, password = view.form.get("name", "").strip(), view.form.get("password", "")
    if not name or not password:
        raise PageError(400, "a user needs a name and a password")
    if name in (".", "..") or not name.isprintable():  # browsers do not send such a part of a path
        raise PageError(400, "a user's name must be printable, and not '.' or '..'")
    kind = SUPER if view.form.get("type") == SUPER else NORMAL
    info = UserInfo(username=name, password=password, user_type=kind)
    await _change(view, broker_admin.create_user, info)
    return view.redirect(_path_of(name), f"User {name} is created.")


async def set_password(view: View) -> Answer:
    """Changes the password of a user at every broker; clients with the old one are refused from then on."""
    password = view.form.get("password", "")
    if not password:
        raise PageError(400, "the new password is empty")
    return await _update(view, UserInfo(username=view.path["user"], password=password))


async def ask_change_user(view: View) -> Answer:
    """Asks before a user is enabled, disabled, or made a super or normal user."""
    info = _change_of(view.path["user"], view.query)
    return view.confirm(
        f"Make user {info.username} {(info.status or info.user_type or '').lower()} at every broker?",
        fields={name: view.query[name] for name in ("status", "type") if view.query.get(name)},
        button="Change the user",
        back=_path_of(view.path["user"]),
    )


async def change_user(view: View) -> Answer:
    """Changes the state or the type of a user at every broker."""
    return await _update(view, _change_of(view.path["user"], view.form))


async def ask_delete_user(view: View) -> Answer:
    """Asks before a user is deleted."""
    name = view.path["user"]
    count = sum(len(policy.entries) for policy in await _held_policies(view, name))
    return view.confirm(
        f"Delete user {name} and its {count} policies at every broker? Its clients are refused from then on.",
        button="Delete the user",
        back=_path_of(name),
    )


async def delete_user(view: View) -> Answer:
    """Deletes a user and its policies at every broker."""
    name = view.path["user"]
    await _change(view, broker_admin.delete_user, name)
    return view.redirect("/access", f"User {name} is deleted.")


async def ask_grant(view: View) -> Answer:
    """Shows the policy that would be added, and the one for the same resource that it replaces."""
    name, entry = view.path["user"], _entry_of(view.query, _actions_of(view))
    replaced = [
        one
        for policy in await _held_policies(view, name)
        for one in policy.entries
        if one.resource == entry.resource
    ]
    was = f" It replaces {', '.join(map(_entry_text, replaced))}." if replaced else ""
    return view.confirm(
        f"{_entry_text(entry)} for user {name} at every broker?{was}",
        fields={
            "resource": entry.resource,
            "decision": entry.decision,
            "addresses": ",".join(entry.source_ips),
            "actions": ",".join(entry.actions),
        },
        button="Set the policy",
        back=_path_of(name),
    )


async def grant(view: View) -> Answer:
    """Adds a policy to a user at every broker, or replaces the one for the same resource."""
    name, entry = view.path["user"], _entry_of(view.form, view.form.get("actions", "").split(","))
    acl = AclInfo(subject=SUBJECT_PREFIX + name, policies=(PolicyInfo(entries=(entry,)),))
    await _change(view, broker_admin.create_acl, acl)
    return view.redirect(_path_of(name), f"The policy of {name} for {entry.resource} is set.")


async def ask_revoke(view: View) -> Answer:
    """Asks before a policy is deleted."""
    name, resource = view.path["user"], view.query.get("resource", "")
    return view.confirm(
        f"Delete the policies of user {name} for {resource} at every broker?",
        fields={"resource": resource},
        button="Delete the policy",
        back=_path_of(name),
    )


async def revoke(view: View) -> Answer:
    """Deletes the policies of a user for one resource at every broker."""
    name, resource = view.path["user"], view.form.get("resource", "")
    if not resource:
        raise PageError(400, "the resource is missing")
    subject = SUBJECT_PREFIX + name
    await _change(view, broker_admin.delete_acl, subject=subject, resource=resource)
    return view.redirect(_path_of(name), f"The policies of {name} for {resource} are deleted.")


async def show_new_account(view: View) -> Answer:
    """Shows the form of an account of the rule files, for a new one or for a change."""
    return view.page("access_new_account.html", key=view.query.get("key", ""), permissions=PERMISSIONS)


async def put_account(view: View) -> Answer:
    """Creates an account in the rule files of every broker, or changes the given fields of one."""
    key, form = view.form.get("key", "").strip(), view.form
    if not key or key in (".", "..") or not key.isprintable():
        raise PageError(400, "an account needs an access key, which must be printable and not '.' or '..'")
    await _change(
        view,
        broker_admin.change_account,
        access_key=key,
        secret_key=form.get("secret") or None,
        is_admin=form.get("admin") == "yes",
        default_topic_permission=form.get("topic_default") or None,
        default_group_permission=form.get("group_default") or None,
        topic_permissions=form.get("topics") or None,
        group_permissions=form.get("groups") or None,
    )
    return view.redirect("/access", f"Account {key} is saved.")


async def ask_delete_account(view: View) -> Answer:
    """Asks before an account is deleted."""
    return view.confirm(
        f"Delete account {view.path['key']} from the rule files of every broker? Clients are refused then.",
        button="Delete the account",
        back="/access",
    )


async def delete_account(view: View) -> Answer:
    """Deletes an account from the rule files of every broker."""
    key = view.path["key"]
    await _change(view, broker_admin.delete_account, access_key=key)
    return view.redirect("/access", f"Account {key} is deleted.")


# Inside


async def _change(view: View, call: Call[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
    """Makes a change of users or rules at each registered broker, because each keeps its own. A silent broker
    does not hold the others up, for a right must end where it can; the change does not seem done there.
    """
    brokers = [one.target for one in (await view.cluster()).brokers]
    await change_each(brokers, lambda one: call(view.tools.remoting, one.address, *args, **kwargs))


async def _access(view: View) -> rules.ClusterAccess:
    return await rules.read_access(view.tools, await view.targets())


async def _held_policies(view: View, user: str) -> list[PolicyInfo]:
    """Returns the policies of a user at the first broker that has any."""
    access = await _access(view)
    held = (rules.policies_of(broker.acls, user) for broker in access.brokers.values())
    return next((policies for policies in held if policies), [])


async def _update(view: View, info: UserInfo) -> Answer:
    await _change(view, broker_admin.update_user, info)
    return view.redirect(_path_of(info.username or ""), f"User {info.username} is changed.")


def _change_of(name: str, given: Mapping[str, str]) -> UserInfo:
    """Returns the change that a form names. Raises PageError."""
    status, user_type = given.get("status", ""), given.get("type", "")
    if status in (ENABLE, DISABLE):
        return UserInfo(username=name, status=status)
    if user_type in (SUPER, NORMAL):
        return UserInfo(username=name, user_type=user_type)
    raise PageError(400, f"status must be {ENABLE} or {DISABLE}, or type {SUPER} or {NORMAL}")


def _actions_of(view: View) -> list[str]:
    return [name for name in NAMES if view.query.get(f"action-{name}") == "yes"]


def _entry_of(given: Mapping[str, str], actions: Sequence[str]) -> EntryInfo:
    """Returns the entry of a form. Raises PageError."""
    resource, decision = given.get("resource", "").strip(), given.get("decision", ALLOW)
    chosen = tuple(name for name in actions if name in NAMES)
    if not resource or not chosen or decision not in (ALLOW, DENY):
        raise PageError(400, "a policy needs a resource such as Topic:orders*, an action, and Allow or Deny")
    addresses = tuple(text.strip() for text in given.get("addresses", "").split(",") if text.strip())
    return EntryInfo(resource=resource, actions=chosen, decision=decision, source_ips=addresses)


def _entry_text(entry: EntryInfo) -> str:
    where = f" from {', '.join(entry.source_ips)}" if entry.source_ips else ""
    return f"{entry.decision} {', '.join(entry.actions)} on {entry.resource}{where}"


def _path_of(user: str) -> str:
    return f"/access/users/{quote_part(user)}"


PAGES: Final = (
    Page("/access", "Access", show_access, menu="Clients"),
    Page("/access/check", "Who may use this?", show_check),
    Page("/access/users/{user}", "User", show_user),
    Page("/new-user", "New user", show_new_user),
    Action("/new-user", "Create a user", create_user, secrets=("password",)),
    Action("/access/users/{user}/password", "Change a password", set_password, secrets=("password",)),
    Action("/access/users/{user}/change", "Change a user", change_user, preview=ask_change_user),
    Action("/access/users/{user}/delete", "Delete a user", delete_user, preview=ask_delete_user),
    Action("/access/users/{user}/grant", "Set a policy", grant, preview=ask_grant),
    Action("/access/users/{user}/revoke", "Delete a policy", revoke, preview=ask_revoke),
    Page("/new-account", "Account", show_new_account),
    Action("/new-account", "Save an account", put_account, secrets=("secret",)),
    Action("/access/accounts/{key}/delete", "Delete an account", delete_account, preview=ask_delete_account),
)
