"""The page's own sentences, in English and in Korean."""

from typing import Literal

Language = Literal["en", "ko"]

SENTENCES: dict[str, dict[Language, str]] = {
    "title": {
        "en": "What {model} makes of a text",
        "ko": "{model} 모델이 텍스트를 읽는 과정",
    },
    "tokens": {
        "en": "Tokens",
        "ko": "토큰",
    },
    "tokens_text": {
        "en": "The text as the model reads it. Special tokens are outlined; the place of each token in the "
        "text stands below it.",
        "ko": "모델이 읽는 토큰입니다. 특수 토큰은 점선으로 표시하고, 각 토큰 아래에 원문에서의 문자 위치를 적습니다.",
    },
    "steps": {
        "en": "WordPiece, step by step",
        "ko": "WordPiece 분할 과정",
    },
    "steps_text": {
        "en": "At each step the longest prefix of what is left that is in the vocabulary becomes a token. A "
        "word of which some rest has no such prefix is unknown as a whole.",
        "ko": "단계마다 남은 부분의 앞에서부터 어휘 집합에 있는 가장 긴 문자열을 토큰으로 만듭니다. 한 단계라도 그런 "
        "문자열이 없으면 단어 전체를 미등록 토큰으로 처리합니다.",
    },
    "steps_columns": {
        "en": "word|left|prefixes tried|token",
        "ko": "단어|남은 부분|확인한 문자열 수|토큰",
    },
    "steps_none": {
        "en": "Each word of the text is a token of its own.",
        "ko": "이 텍스트에는 여러 토큰으로 나뉘는 단어가 없습니다.",
    },
    "input": {
        "en": "The input: embeddings that are added",
        "ko": "입력: 임베딩의 합",
    },
    "input_text": {
        "en": "Each token's input is the sum of the rows below it. The fuller a box, the longer the vector; "
        "its length stands inside.",
        "ko": "각 토큰의 입력은 아래 임베딩을 더한 벡터입니다. 상자의 색이 진할수록 벡터가 길고, "
        "상자 안의 숫자가 그 길이입니다.",
    },
    "input_token": {
        "en": "token",
        "ko": "토큰",
    },
    "input_segment": {
        "en": "segment",
        "ko": "세그먼트",
    },
    "input_position": {
        "en": "position",
        "ko": "위치",
    },
    "masks": {
        "en": "Masks of a batch",
        "ko": "배치의 마스킹",
    },
    "masks_text": {
        "en": "Pre-training predicts {share} of the tokens of a sequence, chosen anew in each epoch: {masked} of them "
        "are replaced by the mask, {random} by a random token, and {kept} are kept. Below a chosen token stands the "
        "token to be predicted.",
        "ko": "사전 학습에서는 에폭마다 시퀀스의 토큰 가운데 {share}를 새로 골라 예측합니다. 고른 토큰의 {masked}는 "
        "마스크로, {random}는 무작위 토큰으로 바꾸고 {kept}는 그대로 둡니다. "
        "고른 토큰 아래에 예측할 원래 토큰을 적습니다.",
    },
    "masks_epoch": {
        "en": "epoch {n}",
        "ko": "에폭 {n}",
    },
    "masks_masked": {
        "en": "masked",
        "ko": "마스크",
    },
    "masks_random": {
        "en": "random",
        "ko": "무작위",
    },
    "masks_kept": {
        "en": "kept",
        "ko": "유지",
    },
    "pairs": {
        "en": "Next-sentence pairs",
        "ko": "다음 문장 예측의 문장 쌍",
    },
    "pairs_text": {
        "en": "Pre-training shows pairs of which the second text follows the first, or is from elsewhere. Here "
        "each sentence stands once before the one that follows it and once before another one of the "
        "text.",
        "ko": "사전 학습에는 뒤 문장이 앞 문장에 실제로 이어지는 쌍과 다른 곳에서 가져온 쌍을 씁니다. 여기서는 "
        "각 문장을 한 번은 바로 다음 문장과, 한 번은 텍스트의 다른 문장과 짝지었습니다.",
    },
    "pairs_columns": {
        "en": "first|second|label|model: follows",
        "ko": "앞 문장|뒤 문장|레이블|모델: 이어질 확률",
    },
    "pairs_next": {
        "en": "follows",
        "ko": "이어짐",
    },
    "pairs_not": {
        "en": "from elsewhere",
        "ko": "다른 곳",
    },
    "probabilities": {
        "en": "Probabilities",
        "ko": "확률",
    },
    "probabilities_text": {
        "en": "The fuller a token, the more probable the model found it; the number below is the probability in %.",
        "ko": "색이 진할수록 모델이 그 토큰을 높은 확률로 예측한 것입니다. 아래 숫자는 확률(%)입니다.",
    },
    "probabilities_masked": {
        "en": "Each token given all others, with it masked. Pseudo-perplexity {value}.",
        "ko": "토큰을 하나씩 마스크로 가리고 나머지 토큰에서 예측한 확률입니다. 의사 퍼플렉서티는 {value}입니다.",
    },
    "probabilities_forward": {
        "en": "Each token given those before it. Perplexity {value}.",
        "ko": "앞에 있는 토큰만 보고 각 토큰을 예측한 확률입니다. 퍼플렉서티는 {value}입니다.",
    },
    "probabilities_backward": {
        "en": "Each token given those after it. Perplexity {value}.",
        "ko": "뒤에 있는 토큰만 보고 각 토큰을 예측한 확률입니다. 퍼플렉서티는 {value}입니다.",
    },
    "next": {
        "en": "The next token",
        "ko": "다음 토큰",
    },
    "next_after": {
        "en": "The {n} most probable tokens after the text, with their probabilities in %.",
        "ko": "텍스트 다음에 올 확률이 가장 높은 토큰 {n}개와 그 확률(%)입니다.",
    },
    "next_before": {
        "en": "This model reads from the end. The {n} most probable tokens before the text, with their "
        "probabilities in %.",
        "ko": "이 모델은 텍스트를 끝에서부터 거꾸로 읽습니다. "
        "텍스트 앞에 올 확률이 가장 높은 토큰 {n}개와 그 확률(%)입니다.",
    },
    "context": {
        "en": "One word, several contexts: {word}",
        "ko": "한 단어, 여러 문맥: {word}",
    },
    "context_text": {
        "en": "The cosine of the word's vectors in each pair of its contexts, at the embedding output and at "
        "the top layer. The embedding output knows the word and its position alone; a table of word vectors "
        "has one vector per word, and 1 everywhere.",
        "ko": "그 단어가 나온 문맥을 둘씩 짝지어, 임베딩 출력과 최상위 층에서 단어 벡터의 코사인 유사도를 구합니다. "
        "임베딩 출력에는 단어와 위치의 정보만 있습니다. word2vec 같은 모델은 단어마다 벡터가 하나이므로 모두 1입니다.",
    },
    "context_cut": {
        "en": "The first {n} of its {all} occurrences.",
        "ko": "{all}번 나온 가운데 처음 {n}번입니다.",
    },
    "context_layer": {
        "en": "layer {n}",
        "ko": "{n}층",
    },
    "context_bottom": {
        "en": "embedding output",
        "ko": "임베딩 출력",
    },
    "models": {"en": "The same word in several models: {word}", "ko": "여러 모델에서의 같은 단어: {word}"},
    "models_text": {
        "en": "The mean cosine between the vectors of the word's occurrences, in each model's top layer. "
        "Word vectors have one vector per word: 1. The lower it is, the more the vectors follow the context; "
        "models differ in how close any two of their vectors are, so the mean cosine of "
        "different words in the same texts stands beside it.",
        "ko": "그 단어가 나온 위치마다 최상위 층의 벡터를 구해 둘씩 비교한 코사인 유사도의 평균입니다. "
        "word2vec 같은 모델은 단어마다 벡터가 하나이므로 1입니다. 값이 낮을수록 벡터가 문맥에 따라 달라집니다. "
        "서로 무관한 두 벡터의 유사도도 모델마다 다르므로, "
        "같은 텍스트에 나온 서로 다른 단어 사이의 평균을 함께 적습니다.",
    },
    "models_columns": {
        "en": "model|same word|different words",
        "ko": "모델|같은 단어|다른 단어",
    },
    "neighbours": {"en": "Nearest words", "ko": "가장 가까운 단어"},
    "neighbours_text": {
        "en": "The words whose vectors have the highest cosines with that of each word of the texts, in any context.",
        "ko": "텍스트의 단어마다 코사인 유사도가 가장 높은 단어들입니다. 문맥이 달라도 결과는 같습니다.",
    },
    "neighbours_columns": {
        "en": "word|nearest words, with their cosines",
        "ko": "단어|가장 가까운 단어와 코사인 유사도",
    },
    "analogy_text": {
        "en": "Analogies of the texts of three words: the words nearest to second - first + third.",
        "ko": "세 단어로 된 텍스트는 유추로 봅니다. 두 번째 - 첫 번째 + 세 번째 벡터에 가장 가까운 단어들입니다.",
    },
    "analogy_columns": {"en": "analogy|answers, with their cosines", "ko": "유추|답과 코사인 유사도"},
    "attention": {
        "en": "Attention",
        "ko": "어텐션",
    },
    "attention_text": {
        "en": "Rows attend (queries), columns are attended to (keys), in the order of the tokens; darker is "
        "more. Attention weights say where a head reads, not why the model answers as it does: they are "
        "no explanation.",
        "ko": "행은 쿼리, 열은 키이며 토큰 순서대로 놓여 있습니다. 색이 진할수록 가중치가 큽니다. "
        "어텐션 가중치는 헤드가 어디를 참조하는지 보여 줄 뿐, 모델이 그렇게 답한 이유를 설명하지는 않습니다.",
    },
    "attention_mean": {
        "en": "mean over all layers and heads",
        "ko": "모든 층과 헤드의 평균",
    },
    "attention_layer": {
        "en": "layer {n}",
        "ko": "{n}층",
    },
    "attention_head": {
        "en": "head {n}",
        "ko": "헤드 {n}",
    },
    "saturation": {"en": "Softmax with and without the root of d", "ko": "√d로 나눌 때와 나누지 않을 때의 소프트맥스"},
    "saturation_text": {
        "en": "Scores are divided by the root of the head size before the softmax (Vaswani et al. 2017). "
        "Without it the same queries and keys put more weight on one token, and less gradient passes: "
        "the sum of w (1 - w).",
        "ko": "어텐션 점수를 헤드 차원의 제곱근으로 나눈 다음 소프트맥스를 적용합니다(Vaswani et al. 2017). "
        "나누지 않으면 쿼리와 키가 같아도 가중치가 한 토큰에 더 몰리고, "
        "w (1 - w)의 합이 작아져 그래디언트가 줄어듭니다.",
    },
    "saturation_columns": {
        "en": "layer|largest weight|without √d|gradient factor|without √d",
        "ko": "층|최대 가중치|√d 없이|그래디언트 계수|√d 없이",
    },
    "cross": {"en": "Cross-attention", "ko": "교차 어텐션"},
    "cross_text": {
        "en": "Rows are the tokens of the model's own translation, columns those of the source: where each token of "
        "the translation reads.",
        "ko": "행은 모델이 생성한 번역문의 토큰, 열은 원문의 토큰입니다. 번역문의 각 토큰이 원문의 어디를 참조하는지 "
        "보여 줍니다.",
    },
    "importance": {"en": "What each head is worth", "ko": "헤드별 중요도"},
    "importance_text": {
        "en": "How many nats a token of the first text loses in log-probability, on average, when one head outputs "
        "nothing. Below 0 the model does better without it. Heads stand in for one another, so a small number does "
        "not mean that a head does nothing.",
        "ko": "헤드 하나의 출력을 0으로 만들었을 때 첫 텍스트의 토큰당 로그 확률이 평균 몇 nat 줄어드는지 나타냅니다. "
        "0보다 작으면 그 헤드가 없는 편이 낫습니다. 다른 헤드가 역할을 대신하기도 하므로, "
        "값이 작다고 해서 쓸모없는 헤드라고 할 수는 없습니다.",
    },
    "cut": {
        "en": "Only the first {n} tokens are drawn.",
        "ko": "처음 토큰 {n}개만 표시합니다.",
    },
    "read": {
        "en": "Only the first {n} tokens of the text are read here.",
        "ko": "여기서는 텍스트의 처음 토큰 {n}개만 읽습니다.",
    },
    "shown": {
        "en": "Shown are {n} of {all}.",
        "ko": "전체 {all}개 가운데 {n}개만 표시합니다.",
    },
    "shown_sentences": {
        "en": "Only the first {n} of {all} sentences are paired.",
        "ko": "전체 {all}개 문장 가운데 처음 {n}개만 짝지었습니다.",
    },
    "pairs_long": {
        "en": "{n} pairs are missing: they have more than the {room} tokens that the model reads.",
        "ko": "모델이 읽는 토큰 {room}개보다 긴 문장 쌍 {n}개는 뺐습니다.",
    },
}


def say_in(language: Language, key: str, **values: object) -> str:
    """Return a sentence of the page, with values filled in."""
    return SENTENCES[key][language].format(**values)
