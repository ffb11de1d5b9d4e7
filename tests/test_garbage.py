"""The garbage collector does nothing while something is measured or relayed."""

import gc

from llmlab.garbage import frozen_heap, no_collection


def test_none_is_made_meanwhile_and_it_is_on_again_afterwards() -> None:
    assert gc.isenabled()
    with no_collection():
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_frozen_heap_is_not_looked_through_and_thaws() -> None:
    with frozen_heap():
        assert gc.get_freeze_count() > 10_000
        assert len(gc.get_objects()) < 10_000
    assert gc.get_freeze_count() == 0
