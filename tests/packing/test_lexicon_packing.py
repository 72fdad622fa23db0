"""As many entries of a lexicon as fit a size; that the packed form is read back is tested in tests/test_lexicon.py."""

from hypothesis import given
from hypothesis import strategies as st

from ade.packing.lexicon_packing import entries_within, most_bytes


@given(
    entries=st.integers(1, 3000), labels=st.integers(1, 90), vocabulary=st.integers(60, 70_000), share=st.floats(0, 1.2)
)
def test_as_many_entries_are_kept_as_fit(entries, labels, vocabulary, share):
    most = most_bytes(entries, vocabulary, labels)
    limit = int(share * most)
    kept = entries_within(limit, entries, vocabulary, labels)
    assert kept == entries if limit >= most else 0 <= kept < entries
    if kept:
        assert most_bytes(kept, vocabulary, labels) <= limit
    assert entries_within(None, entries, vocabulary, labels) == entries
