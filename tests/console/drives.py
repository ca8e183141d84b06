"""Every action of the console, made as a reader makes it, with a check of its effect in the cluster.

`DRIVES` has a row for each action that the application serves: an action without a row fails the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from browser import Reader
from console_load import FAILING, ORDERS, PAYMENTS, SLOW
from sites import OPERATOR, READER, SERVICE, Site
from visits import LETTER, part

from waits import until_blocking

Drive = Callable[[Reader, Site], None]


def press(reader: Reader, button: str) -> str:
    """Presses the button in the page's content; returns the text of the page that follows."""
    page = reader.page
    # A confirmed change waits for the brokers.
    with page.expect_navigation(timeout=60_000):
        page.locator("main").get_by_role("button", name=button, exact=False).first.click()
    return page.inner_text("main")


def confirm(reader: Reader, path: str, button: str) -> str:
    """Opens the preview of a change and presses its button; returns the notice of the page that follows."""
    response = reader.visit_answered(path)
    assert response.status == 200, f"{path}: {response.status} {reader.page.inner_text('main')}"
    reader.check(f"preview-{path.split('?')[0].strip('/').replace('/', '-')}")
    return notice_after(reader, button)


def notice_after(reader: Reader, button: str) -> str:
    """Presses the button; returns the notice of the page that follows."""
    text = press(reader, button)
    notice = reader.page.locator(".notice")
    assert notice.count() == 1, f"no notice after {button!r}: {text[:1000]}"
    return notice.inner_text()


def refuses(reader: Reader, path: str) -> None:
    """Visits the preview of a change that this cluster cannot make: the page says why."""
    response = reader.visit(path)
    assert response.status != 500, reader.page.inner_text("main")
    assert 400 <= response.status < 600, f"{path}: {response.status} {reader.page.inner_text('main')[:500]}"


# The console itself


def log_in(reader: Reader, site: Site) -> None:
    """Logs in with a wrong secret, then with the right one; a cluster without users accepts no log-in."""
    page = reader.page
    reader.context.clear_cookies()
    reader.visit("/login")
    for secret in ("wrong", OPERATOR[1]):
        page.get_by_label("Name or access key").fill(OPERATOR[0])
        page.get_by_label("Secret").fill(secret)
        with page.expect_navigation():
            page.get_by_role("button", name="Log in").click()
        if secret == "wrong" or site.user is None:
            assert page.locator(".problem").inner_text()
    if site.user is not None:
        page.get_by_role("button", name="Log out").wait_for()


def log_out(reader: Reader, site: Site) -> None:
    """Logs out: the cluster's state needs a log-in again."""
    page = reader.page
    reader.visit("/")
    if site.user is None:
        assert page.get_by_role("button", name="Log out").count() == 0
        return
    page.get_by_role("button", name="Log out").click()
    page.wait_for_url("**/login**")
    reader.visit("/topics")
    assert ORDERS not in page.inner_text("main")


def set_theme(reader: Reader, site: Site) -> None:
    """Chooses dark colors, which the page keeps."""
    reader.visit("/")
    with reader.page.expect_navigation():
        reader.page.get_by_label("Colors").select_option("dark")
    assert reader.page.locator("html[data-theme=dark]").count() == 1
    reader.visit("/login")
    assert reader.page.locator("html[data-theme=dark]").count() == 1


# Brokers and settings


def hand_over(reader: Reader, site: Site) -> None:
    if site.up is None:
        return refuses(reader, "/brokers/groups/broker-a/handover")
    before = site.master()
    confirm(reader, "/brokers/groups/broker-a/handover", "Hand over")
    until_blocking(lambda: site.master() != before, "another master")
    site.load.check()
    return None


def change_permission(reader: Reader, site: Site) -> None:
    confirm(reader, "/brokers/groups/broker-a/permission", "")
    confirm(reader, "/brokers/groups/broker-a/permission?writable=true", "")


def accept_log(reader: Reader, site: Site) -> None:
    """A master that waits for no slave has nothing to accept."""
    path = f"/brokers/{part(site.master())}/accept"
    response = reader.visit(path)
    assert response.status != 500
    if response.status == 200:
        press(reader, "Accept its log")


def change_setting(reader: Reader, site: Site) -> None:
    reader.visit(f"/settings/change?broker={site.master()}&key=fileReservedTime")
    reader.page.locator("#value").fill("71")
    press(reader, "Preview")
    reader.check("preview-settings-change")
    notice_after(reader, "Change")
    reader.visit("/settings?all=1")
    assert "71" in reader.page.inner_text("main")


# Topics and groups


def create_topic(reader: Reader, site: Site) -> None:
    reader.visit("/new-topic")
    reader.page.locator("#name").fill("FromConsole")
    reader.page.locator("#queues").fill("3")
    assert "FromConsole" in notice_after(reader, "Create")
    with site.admin() as admin:
        assert len(admin.topic_offsets("FromConsole")) == 3


def change_topic(reader: Reader, site: Site) -> None:
    reader.visit(f"/topics/{PAYMENTS}/settings")
    reader.page.locator("#read_queues").fill("6")
    reader.page.locator("#write_queues").fill("6")
    press(reader, "Preview")
    reader.check("preview-topic-change")
    notice_after(reader, "Change")
    with site.admin() as admin:
        until_blocking(lambda: len(admin.topic_offsets(PAYMENTS)) == 6, "six queues")


def delete_topic(reader: Reader, site: Site) -> None:
    with site.admin() as admin:
        admin.ensure_topic("ToDelete")
        confirm(reader, "/topics/ToDelete/delete", "Delete the topic")
        until_blocking(lambda: "ToDelete" not in admin.topics(), "the topic is gone")


def create_group(reader: Reader, site: Site) -> None:
    reader.visit("/new-group")
    reader.page.locator("#name").fill("from-console")
    assert "from-console" in notice_after(reader, "Create")
    reader.visit("/groups?q=from-console")
    assert "from-console" in reader.page.inner_text("main table")


def change_group(reader: Reader, site: Site) -> None:
    reader.visit(f"/groups/{SLOW}/settings")
    reader.page.locator("main input[type=number]").last.fill("7")
    press(reader, "Preview")
    reader.check("preview-group-change")
    notice_after(reader, "Change")
    reader.visit(f"/groups/{SLOW}")
    assert "7" in reader.page.inner_text("main")


def delete_group(reader: Reader, site: Site) -> None:
    reader.visit("/new-group")
    reader.page.locator("#name").fill("to-delete")
    notice_after(reader, "Create")
    confirm(reader, "/groups/to-delete/delete", "Delete the group")
    reader.visit("/groups?q=to-delete")
    assert reader.page.locator("main table").get_by_text("to-delete").count() == 0


def reset_offsets(reader: Reader, site: Site) -> None:
    """Moves an online group to the end: the preview counts the messages that are skipped."""
    # A busy machine's brokers may answer too late for the page, which names them then.
    option = reader.page.locator("select#topic option").get_by_text(ORDERS, exact=True)

    def is_offered() -> bool:
        reader.visit_answered(f"/groups/{SLOW}/offsets")
        return option.count() > 0

    until_blocking(is_offered, "the group's topic to choose")
    reader.page.locator("#topic").select_option(ORDERS)
    reader.page.locator("#to").select_option("end")
    press(reader, "Preview the move")
    reader.check("preview-group-reset")
    notice_after(reader, "Move the offsets")
    with site.admin() as admin:
        until_blocking(lambda: admin.lag(SLOW, ORDERS) < 1000, "the group is at the end")


def clone_offsets(reader: Reader, site: Site) -> None:
    reader.visit("/new-group")
    reader.page.locator("#name").fill("copy")
    notice_after(reader, "Create")
    confirm(reader, f"/groups/copy/clone?source={SLOW}&topic={ORDERS}", "Copy the offsets")
    with site.admin() as admin:
        assert any(offset for offset in admin.committed_offsets("copy", ORDERS).values())


# Messages


def resend_letters(reader: Reader, site: Site) -> None:
    reader.visit(f"/dead-letters/{FAILING}")
    reader.page.locator("main tbody input[type=checkbox]").first.check()
    press(reader, "Preview")
    reader.check("preview-dead-letters-resend")
    notice_after(reader, "Send")


def send_changed_letter(reader: Reader, site: Site) -> None:
    """Changes the body of a dead letter and sends it to a topic, where it is found."""
    reader.visit(LETTER)
    reader.page.locator("#body").fill('{"amount": 99, "repaired": true}')
    reader.page.locator("#keys").fill("repaired-key")
    reader.page.locator("#to").select_option(index=reader.page.locator("#to option").count() - 1)
    reader.page.locator("#topic").fill(ORDERS)
    press(reader, "Send")
    with site.admin() as admin:
        until_blocking(lambda: admin.find_by_key(ORDERS, "repaired-key"), "the changed letter")


def cancel_timer(reader: Reader, site: Site) -> None:
    """Cancels the timer message by the handle that its producer got."""
    if not site.load.recall_handle:
        refuses(reader, "/delayed/cancel?handle=invalid")
        return
    confirm(reader, f"/delayed/cancel?handle={part(site.load.recall_handle)}", "Cancel the message")


def check_transaction(reader: Reader, site: Site) -> None:
    reader.visit("/transactions")
    with reader.page.expect_navigation():
        reader.page.locator("main table a.button").first.click()
    reader.check("preview-transactions-check")
    notice_after(reader, "Check again")


# Pipelines


def pause_pipeline(reader: Reader, site: Site) -> None:
    reader.visit("/services")
    assert ORDERS in notice_after(reader, "Pause")
    (marks(site) / "paused" / ORDERS).unlink()


def resume_pipeline(reader: Reader, site: Site) -> None:
    withdraw(reader, marks(site) / "paused" / ORDERS, "Resume")


def redo_pipeline(reader: Reader, site: Site) -> None:
    service = marks(site).parent
    assert ORDERS in confirm(reader, f"/services/redo?out={part(str(service))}&topic={ORDERS}", "Land anew")
    (marks(site) / "redo" / ORDERS).unlink()


def cancel_redo(reader: Reader, site: Site) -> None:
    withdraw(reader, marks(site) / "redo" / ORDERS, "Cancel redo")


def withdraw(reader: Reader, mark: Path, button: str) -> None:
    """Makes the mark of an order, and presses the button that removes it."""
    mark.parent.mkdir(exist_ok=True)
    mark.touch()
    reader.visit("/services")
    assert ORDERS in notice_after(reader, button)
    assert not mark.exists()


def marks(site: Site) -> Path:
    """Returns the directory with the orders to the site's service."""
    return site.log.parent / SERVICE / "_tandemmq"


# Access


def ours(drive: Drive, path: str) -> Drive:
    """Returns the drive for our cluster; Java's, without access control, must refuse the path."""

    def either(reader: Reader, site: Site) -> None:
        if site.up is None:
            response = reader.visit(path)
            assert response.status != 500
            return
        drive(reader, site)

    return either


def create_user(reader: Reader, site: Site) -> None:
    reader.visit("/new-user")
    reader.page.locator("#name").fill("made-here")
    reader.page.locator("#password").fill("made-here-secret")
    notice_after(reader, "Create")
    reader.visit("/access")
    assert "made-here" in reader.page.inner_text("main")


def change_password(reader: Reader, site: Site) -> None:
    reader.visit(f"/access/users/{READER[0]}")
    reader.page.locator("#password").fill(READER[1])
    notice_after(reader, "Change the password")


def change_user(reader: Reader, site: Site) -> None:
    confirm(reader, f"/access/users/{READER[0]}/change?status=disable", "Change the user")
    confirm(reader, f"/access/users/{READER[0]}/change?status=enable", "Change the user")


def delete_user(reader: Reader, site: Site) -> None:
    reader.visit("/new-user")
    reader.page.locator("#name").fill("to-delete")
    reader.page.locator("#password").fill("to-delete-secret")
    notice_after(reader, "Create")
    confirm(reader, "/access/users/to-delete/delete", "Delete the user")
    reader.visit("/access")
    assert "to-delete" not in reader.page.inner_text("main table")


def grant(reader: Reader, site: Site) -> None:
    reader.visit(f"/access/users/{READER[0]}")
    reader.page.locator("#resource").fill("Topic:console*")
    reader.page.locator("input[name=action-Sub]").check()
    press(reader, "Preview")
    reader.check("preview-access-grant")
    notice_after(reader, "Set the policy")
    assert "console*" in reader.page.inner_text("main")


def revoke(reader: Reader, site: Site) -> None:
    grant(reader, site)
    path = f"/access/users/{READER[0]}/revoke?resource={part('Topic:console*')}"
    confirm(reader, path, "Delete the policy")
    reader.visit(f"/access/users/{READER[0]}")
    assert "console*" not in reader.page.inner_text("main")


def save_account(reader: Reader, site: Site) -> None:
    """The cluster has users of RocketMQ 5 and no rule files: it says that it cannot save an account."""
    reader.visit("/new-account")
    reader.page.locator("#key").fill("made-here-4x")
    reader.page.locator("#secret").fill("made-here-secret")
    assert press(reader, "Save")


def delete_account(reader: Reader, site: Site) -> None:
    response = reader.visit("/access/accounts/made-here-4x/delete")
    assert response.status != 500
    if response.status == 200:
        press(reader, "Delete the account")


DRIVES: dict[str, Drive] = {
    "/login": log_in,
    "/logout": log_out,
    "/theme": set_theme,
    "/brokers/groups/{name}/handover": hand_over,
    "/brokers/groups/{name}/permission": change_permission,
    "/brokers/{address}/accept": accept_log,
    "/settings/change": change_setting,
    "/new-topic": create_topic,
    "/topics/{topic}/change": change_topic,
    "/topics/{topic}/delete": delete_topic,
    "/new-group": create_group,
    "/groups/{group}/change": change_group,
    "/groups/{group}/delete": delete_group,
    "/groups/{group}/reset": reset_offsets,
    "/groups/{group}/clone": clone_offsets,
    "/dead-letters/{group}/resend": resend_letters,
    "/dead-letters/{group}/letter/{broker}/{queue}/{offset}/send": send_changed_letter,
    "/delayed/cancel": cancel_timer,
    "/transactions/check": check_transaction,
    "/services/pause": pause_pipeline,
    "/services/resume": resume_pipeline,
    "/services/redo": redo_pipeline,
    "/services/cancel-redo": cancel_redo,
    "/new-user": ours(create_user, "/new-user"),
    "/access/users/{user}/password": ours(change_password, f"/access/users/{READER[0]}"),
    "/access/users/{user}/change": ours(change_user, f"/access/users/{READER[0]}/change?status=disable"),
    "/access/users/{user}/delete": ours(delete_user, f"/access/users/{READER[0]}/delete"),
    "/access/users/{user}/grant": ours(grant, f"/access/users/{READER[0]}/grant"),
    "/access/users/{user}/revoke": ours(revoke, f"/access/users/{READER[0]}/revoke"),
    "/new-account": ours(save_account, "/new-account"),
    "/access/accounts/{key}/delete": ours(delete_account, "/access/accounts/made-here-4x/delete"),
}
