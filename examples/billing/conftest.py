import pytest


@pytest.fixture(scope="session")
def tandemmq_options():
    return {"slave": True}
