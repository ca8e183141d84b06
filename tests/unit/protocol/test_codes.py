"""Numbers and names of versions (spec remoting 4)."""

from __future__ import annotations

import pytest

from tandemmq.protocol.codes import OUR_VERSION, LanguageCode, RequestCode, ResponseCode, render_version

VERSIONS = [
    (28, "V3_0_7_SNAPSHOT"),
    (37, "V3_0_11"),
    (62, "V3_1_8_SNAPSHOT"),
    (79, "V3_2_6"),
    (87, "V3_3_1"),
    (121, "V3_4_9"),
    (213, "V4_0_0"),
    (232, "V4_1_0_SNAPSHOT"),
    (233, "V4_1_0"),
    (293, "V4_4_0"),
    (317, "V4_5_2"),
    (399, "V4_9_3"),
    (409, "V4_9_8"),
    (413, "V5_0_0"),
    (441, "V5_1_4"),
    (477, "V5_3_2"),
    (611, "V5_9_9"),
    (612, "HIGHER_VERSION"),
    (40_000, "HIGHER_VERSION"),
]


@pytest.mark.parametrize(("version", "name"), VERSIONS)
def test_version_prints_as_java_prints_it(version: int, name: str) -> None:
    assert render_version(version) == name


def test_our_version_is_5_3_3() -> None:
    assert render_version(OUR_VERSION) == "V5_3_3"


@pytest.mark.parametrize("version", [-1, 0, 1, 16])
def test_version_before_the_list_has_some_name(version: int) -> None:
    assert render_version(version).startswith("V3_0_")


def test_numbers_of_the_most_used_codes() -> None:
    assert (RequestCode.SEND_MESSAGE_V2, RequestCode.PULL_MESSAGE, RequestCode.HEART_BEAT) == (310, 11, 34)
    assert (ResponseCode.TOPIC_NOT_EXIST, ResponseCode.PULL_NOT_FOUND) == (17, 19)
    assert (LanguageCode.JAVA, LanguageCode.GO) == (0, 9)
