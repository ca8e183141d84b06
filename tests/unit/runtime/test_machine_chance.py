from tandemmq.runtime.machine import SeededRandom, SystemRandom


def test_a_seed_gives_its_sequence_again() -> None:
    first, second = SeededRandom(7), SeededRandom(7)
    assert [first.below(1000) for _ in range(20)] == [second.below(1000) for _ in range(20)]
    assert first.token_bytes(16) == second.token_bytes(16)
    assert SeededRandom(8).token_bytes(16) != SeededRandom(7).token_bytes(16)


def test_below_stays_below() -> None:
    chance = SystemRandom()
    assert {chance.below(3) for _ in range(200)} == {0, 1, 2}
    assert len(chance.token_bytes(5)) == 5
