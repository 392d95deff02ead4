"""Sentence splitting: English, Korean, and what holds for any text."""

import re
from unicodedata import normalize

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from firth.text.sentences import split_sentences

# One string per sentence; joined by a space they are the paragraph.
ENGLISH = [
    ["The cat sat.", "The dog ran."],
    ["Mr. Smith met Mrs. Jones and Dr. Brown."],
    ["Prof. Lee lives in St. Louis.", "She teaches there."],
    ["He paid $3.50 for it.", "It was worth 1.25 at most."],
    ["J. R. R. Tolkien wrote it.", "C. S. Lewis read it."],
    ['"Why?" he asked.', "Nobody knew."],
    ["“Stop!” she cried.", "He did not stop."],
    ["Wait... what did you say?", "Nothing."],
    ["It faded… and then it was gone.", "Silence."],
    ["It ended…", "Then it began again."],
    ["The U.S. Army arrived.", "It was late."],
    ["They moved to the U.S.", "The others stayed."],
    ["Use tools, e.g. Python, i.e. the language.", "Others work."],
    ["See Fig. 3 and No. 12 for details.", "Both are clear."],
    ["He said no.", "Then he left."],
    ["Was it Smith vs. Jones?", "Yes, it was."],
    ["Apples, pears, etc. were sold.", "Nobody bought any."],
    ["They sold apples, pears, etc.", "The market closed."],
    ["Acme Inc. Chairman Bob Hill resigned.", "He was 61."],
    ["It happened on Jan. 5 at noon.", "Nobody saw it."],
    ["He died in 1924.", "His son took over."],
    ["1. Introduction"],
    ['She said, "I am leaving."', "Then she left."],
    ["(He had left.)", "Nobody cared."],
    ["Really?!", "Yes!", "Good."],
    ["Version 2.0.1 is out at example.com now.", "Get it."],
    ["The meeting is at 5 p.m. on Monday.", "Come early."],
    ["Visit Washington, D.C. Museum tours are free."],
    ["What is it?", '"A book," she said.'],
    ["He was told (see p. 12) to wait.", "He waited."],
    ["Smith et al. Report no change."],
    ["No end in sight"],
    ["J.-P. Sartre wrote plays.", "They sold."],
    ["The year was 1999.", "12 people came."][:1],
]
OTHERS = [
    ["यह पहला वाक्य है।", "यह दूसरा वाक्य है।"],
    ["هل هذا سؤال؟", "نعم."],
    ["یہ ایک جملہ ہے۔", "یہ دوسرا ہے۔"],
]
KOREAN = [
    ["그는 학교에 갔다.", "그녀는 집에 있었다."],
    ["안녕하세요.", "저는 학생입니다.", "반갑습니다."],
    ["정말 그럴까?", "아무도 모른다."],
    ["그렇죠.", "맞아요."],
    ["1924. 10. 1. 서울에서 태어났다.", "부산에서 자랐다."],
    ["3.1 운동은 1919년에 일어났다.", "많은 사람이 참여했다."],
    ["길이는 3.5 미터이다.", "너비는 2.1 미터이다."],
    ['"왜?"라고 그가 물었다.', "대답은 없었다."],
    ["그는 “간다.”라고 말했다.", "그리고 떠났다."],
    ["“안 돼!” 하고 외쳤다.", "아무도 듣지 않았다."],
    ["영국의 주력전차였다.", "1945년 도입되었다."],
    ["역()은 마드리드 지하철의 역이다.", "5호선과 7호선이 지난다."],
    ["가격은 2,000원이에요!", "싸죠?", "그래요."],
    ["그는 말했다…", "그리고 떠났다."],
    ["J. K. 롤링이 썼다.", "책은 많이 팔렸다."],
    ["문장 하나뿐이다"],
    ["(그는 떠났다.)", "모두 놀랐다."],
    ["KBS는 방송사이다.", "MBC도 방송사이다."],
]


@pytest.mark.parametrize("sentences", ENGLISH + OTHERS + KOREAN, ids=lambda s: s[0][:30])
def test_splits_between_sentences_only(sentences: list[str]) -> None:
    assert split_sentences(" ".join(sentences)) == sentences


@pytest.mark.parametrize(
    ("paragraph", "sentences"),
    [
        ("그는 갔다.그는 왔다.", ["그는 갔다.", "그는 왔다."]),
        ("그래요.정말요?네.", ["그래요.", "정말요?", "네."]),
        ("다음은 3.1운동이다.끝", ["다음은 3.1운동이다.", "끝"]),
        ("他走了。我也走了！真的？是。", ["他走了。", "我也走了！", "真的？", "是。"]),
        ("「行く。」と言った。そして行った。", ["「行く。」と言った。", "そして行った。"]),
        ("One.  \t Two.", ["One.", "Two."]),
        ("example.com is a.b.c", ["example.com is a.b.c"]),
        ("...", ["..."]),
        ("", []),
        ("  \t ", []),
    ],
)
def test_gaps(paragraph: str, sentences: list[str]) -> None:
    assert split_sentences(paragraph) == sentences


def test_one_sentence_is_unchanged() -> None:
    line = "  The cat sat on Mr. Smith's mat.  "
    assert split_sentences(line) == [line]


LIKELY = st.text(st.sampled_from(".!?…。！？\"'”)(“ \t다요까가A b1a,Mr"), max_size=60)


@settings(max_examples=300)
@given(st.one_of(LIKELY, st.text(max_size=60)))
def test_nothing_is_lost(paragraph: str) -> None:
    sentences = split_sentences(paragraph)
    assert re.sub(r"\s", "", "".join(sentences)) == re.sub(r"\s", "", paragraph)
    assert all(sentence.strip() for sentence in sentences)
    assert sentences == split_sentences(paragraph)


@settings(max_examples=300)
@given(st.text(st.sampled_from('.!?"” \t다요까각고라며가A1'), max_size=60))
def test_decomposed_text_is_split_like_composed_text(paragraph: str) -> None:
    assert [normalize("NFC", s) for s in split_sentences(normalize("NFD", paragraph))] == split_sentences(paragraph)


@pytest.mark.parametrize("unit", [".", '."', "a. ", "J. ", "다.", "( ", ". (", "1. ", ".\t"])
def test_hostile_input_is_split_in_a_moment(unit: str) -> None:
    """In quadratic time it would take hours."""
    paragraph = unit * 100_000
    assert re.sub(r"\s", "", "".join(split_sentences(paragraph))) == re.sub(r"\s", "", paragraph)
