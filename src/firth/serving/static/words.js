// What the page says, in two languages, and the texts that its panels begin with.

const WORDS = {
  en: {
    model: "Model", key: "API key", run: "Run", text: "Text", second: "Second text", question: "Question",
    context: "Context", texts: "Texts, one per line", layer: "Layer", head: "Head", curl: "The same with curl",
    none: "nothing found", other: "한국어", failed: "No answer from the server",
    locked: "This server answers with a key alone: type it above.", share: "Share", seed: "Seed",
    mask: "masked", random: "replaced", kept: "kept", word: "Word to compare", correct: "correct on held-out texts",
    cosine: "Cosines of the word's vectors, by text", once: "The word does not occur twice.",
    accuracy: "Correct predictions", token: "token", segment: "+ segment", position: "+ position", follows: "it follows",
    examples: "One example per line (label: text)", encoder: "this model's vectors",
    tfidf: "TF-IDF", majority: "most frequent label", count: "examples to learn from", alone: "Word",
    target: "Translation (empty: the model's own)", choices: "Choices, one per line", system: "System", task: "Task",
    reads: "Tokens at most", depth: "Layers", unknown: "not in the vocabulary", original: "Original token", component: "principal component",
    variance: "% of the variance", best: "Best layer", interval: "95 % interval", heads: "Rows: layers. Columns: heads. Choose one.",
    value: "Value", busy: "Running …",
    tokens: "Tokens", input: "The sum that BERT reads", labels: "Labels", masks: "Fill in the mask",
    masking: "Masks of pre-training", next: "Does the second text follow the first?", entities: "Tags in the text",
    answer: "Answer in the context", choose: "Multiple choice", write: "Continue a text", attention: "Attention",
    cross: "Attention over the source of a translation", hidden: "Hidden states, layer by layer",
    layers: "Which layer suits the task?", similar: "Nearest texts", nearest: "Nearest words", learn: "A few labels",
  },
  ko: {
    model: "모델", key: "API 키", run: "실행", text: "텍스트", second: "두 번째 텍스트", question: "질문",
    context: "지문", texts: "텍스트(한 줄에 하나)", layer: "층", head: "헤드", curl: "curl 명령으로 보기",
    none: "결과 없음", other: "English", failed: "서버가 응답하지 않습니다",
    locked: "이 서버는 API 키가 있어야 응답합니다. 위에 키를 입력하세요.", share: "비율", seed: "시드",
    mask: "마스크", random: "무작위 교체", kept: "유지", word: "비교할 단어", correct: "학습에 쓰지 않은 텍스트의 정확도",
    cosine: "텍스트별 단어 벡터의 코사인 유사도", once: "단어가 두 번 이상 나오지 않습니다.",
    accuracy: "맞힌 토큰", token: "토큰", segment: "+ 세그먼트", position: "+ 위치", follows: "이어짐",
    examples: "한 줄에 예시 하나(레이블: 텍스트)", encoder: "이 모델의 벡터",
    tfidf: "TF-IDF", majority: "최빈 레이블", count: "학습 예시 수", alone: "단어",
    target: "번역문(비워 두면 모델이 번역)", choices: "선택지(한 줄에 하나)", system: "구조", task: "과제",
    reads: "최대 토큰 수", depth: "층 수", unknown: "어휘에 없음", original: "원래 토큰", component: "주성분",
    variance: "% (분산 비율)", best: "가장 좋은 층", interval: "95 % 신뢰 구간", heads: "행은 층, 열은 헤드입니다. 하나를 고르세요.",
    value: "값", busy: "실행 중 …",
    tokens: "토큰", input: "BERT의 입력: 임베딩의 합", labels: "레이블", masks: "마스크 채우기",
    masking: "사전 학습의 마스킹", next: "두 번째 텍스트가 첫 번째에 이어집니까?", entities: "텍스트 속의 태그",
    answer: "지문에서 찾은 답", choose: "객관식", write: "이어 쓰기", attention: "어텐션",
    cross: "번역문에서 원문으로 가는 어텐션", hidden: "층별 은닉 상태",
    layers: "어느 층이 과제에 알맞은가?", similar: "가장 가까운 텍스트", nearest: "가장 가까운 단어", learn: "적은 레이블로 학습하기",
  },
};

// How each panel is read.
const HINTS = {
  en: {
    tokens: "What the model reads: each token with its number in the vocabulary. Dashed: special tokens.",
    input: "BERT adds three learned vectors for each token: of the token, of its segment (A: first text, B: second) and of its position.",
    labels: "The probability of each label.",
    value: "The value that the model predicts, on the scale of its training examples.",
    masks: "The most probable tokens at [MASK], with their probabilities.",
    masking: "Pre-training chooses a share of the tokens and learns to predict them. Most of them become [MASK], a tenth a random token; a tenth stay. Each run chooses others.",
    next: "The probability of BERT's next-sentence prediction.",
    entities: "Each marked span has a tag and a score.",
    answer: "The marked span is the model's answer, with its score.",
    choose: "The probability of each choice.",
    write: "The model adds up to 30 tokens, each sampled by its probability. The same text is continued in the same way.",
    attention: "A line leads from a token to one that it attends to; a stronger line is a larger weight. Point at a token to see its lines alone. Weights show where a head reads: they do not explain a prediction.",
    cross: "A line leads from a token of the translation (left) to one of the source (right). Weights show where a head reads: they do not explain a translation.",
    hidden: "Each point is a token's vector, on the two directions in which the vectors of the layer differ most (PCA); layer 0 is the embeddings. Distances in the picture are approximate; the cosines are exact.",
    layers: "How well logistic regression on the mean vector of each layer labels texts that it did not learn from; layer 0 is the embeddings. Few texts give wide intervals: layers whose intervals overlap may not differ.",
    similar: "Cosines of the texts' vectors with the vector of the first text. Compare them with one another: their level depends on the model.",
    nearest: "The words whose vectors have the highest cosine with that of the word.",
    learn: "Accuracy of logistic regression on this model's vectors and on TF-IDF, as the number of labelled examples grows.",
  },
  ko: {
    tokens: "모델이 읽는 토큰과 어휘 번호입니다. 점선 테두리는 특수 토큰입니다.",
    input: "BERT는 토큰마다 학습된 벡터 세 개, 곧 토큰·세그먼트(A: 첫째 텍스트, B: 둘째 텍스트)·위치의 벡터를 더합니다.",
    labels: "각 레이블의 확률입니다.",
    value: "모델이 예측한 값이며, 척도는 학습 예시와 같습니다.",
    masks: "[MASK] 자리에 올 확률이 가장 높은 토큰들입니다.",
    masking: "사전 학습은 토큰의 일부를 골라 예측을 학습합니다. 대부분은 [MASK]로, 10 %는 무작위 토큰으로 바꾸고, 10 %는 그대로 둡니다. 실행할 때마다 다른 토큰을 고릅니다.",
    next: "BERT의 다음 문장 예측 확률입니다.",
    entities: "표시된 구간마다 태그와 점수가 있습니다.",
    answer: "표시된 구간이 모델의 답이며, 옆의 수는 점수입니다.",
    choose: "각 선택지의 확률입니다.",
    write: "토큰을 확률에 따라 하나씩 뽑아 최대 30개까지 이어 씁니다. 같은 텍스트는 같은 결과를 냅니다.",
    attention: "선은 한 토큰에서 그 토큰이 주목하는 토큰으로 이어지며, 진할수록 가중치가 큽니다. 토큰을 가리키면 그 선만 보입니다. 가중치는 헤드가 어디를 읽는지 보여 줄 뿐, 예측의 근거를 설명하지 않습니다.",
    cross: "선은 번역문의 토큰(왼쪽)에서 원문의 토큰(오른쪽)으로 이어집니다. 가중치는 헤드가 어디를 읽는지 보여 줄 뿐, 번역의 근거를 설명하지 않습니다.",
    hidden: "점 하나가 토큰 벡터 하나이며, 그 층의 벡터들이 가장 크게 달라지는 두 방향(PCA)에 나타냅니다. 0층은 임베딩입니다. 그림의 거리는 근삿값이고 코사인은 정확한 값입니다.",
    layers: "각 층의 평균 벡터로 로지스틱 회귀를 학습해, 학습에 쓰지 않은 텍스트의 레이블을 맞힌 비율입니다. 0층은 임베딩입니다. 텍스트가 적으면 구간이 넓습니다. 구간이 겹치는 층은 차이가 없을 수 있습니다.",
    similar: "첫 텍스트의 벡터와 각 텍스트의 벡터가 이루는 코사인입니다. 전체 수준은 모델마다 다르므로 서로 비교하세요.",
    nearest: "단어 벡터와 코사인이 가장 큰 단어들입니다.",
    learn: "레이블이 있는 예시가 늘어날 때 이 모델의 벡터와 TF-IDF로 학습한 로지스틱 회귀의 정확도입니다.",
  },
};

export const EXAMPLES = {
  en: {
    text: "The old farmer sat on the bank of the river.", mask: "He was the first [MASK] of the United States.", second: "", target: "",
    question: "Where did the farmer sit?", texts: "He opened an account at the bank.\nThe water was cold.",
    sentences: [
      "He sat on the bank of the river.", "The bank of the lake was steep.", "The bank lent him money.",
      "The bank raised its interest rates.",
    ].join("\n"),
    word: "bank", named: "Marie Curie was born in Warsaw and worked in Paris.", alone: "river", next: "He was very tired.", choices: "On the bank of the river.\nIn the kitchen.\nIn a boat.",
    examples: [
      "music: She plays the violin in an orchestra.", "music: The band recorded its first album in London.",
      "music: He is a pianist and composer.", "music: The song reached the top of the charts.",
      "music: The choir sang two hymns.", "music: Her second album was released in May.",
      "music: The opera has three acts.", "music: He taught the guitar for years.",
      "places: The village lies on the left bank of the river.", "places: It is a town in the north of Spain.",
      "places: The population of the district was 4,000.", "places: The lake is north of the mountains.",
      "places: The road leads to the harbour.", "places: The island has two small villages.",
      "places: The city is the capital of the province.", "places: The valley is known for its vineyards.",
    ].join("\n"),
  },
  ko: {
    text: "늙은 농부가 강가에 앉아 있었다.", mask: "서울은 대한민국의 [MASK]이다.", second: "", target: "",
    question: "농부는 어디에 앉아 있었나?", texts: "그는 은행에서 계좌를 만들었다.\n강물이 차가웠다.",
    sentences: "배가 항구에 들어왔다.\n배가 아파서 병원에 갔다.\n배를 타고 섬에 갔다.", word: "배",
    named: "김영희 기자는 지난해 서울에서 부산으로 갔다.", alone: "강", next: "그는 몹시 피곤했다.", choices: "강가에.\n부엌에.\n배 안에.",
    examples: [
      "음악: 그는 피아노를 연주한다.", "음악: 이 밴드는 첫 앨범을 발표했다.", "음악: 이 노래는 큰 인기를 얻었다.",
      "음악: 합창단이 노래를 불렀다.", "음악: 그녀는 작곡가이자 가수이다.", "음악: 이 오페라는 3막으로 되어 있다.",
      "장소: 이 마을은 강가에 있다.", "장소: 이 도시는 도청 소재지이다.", "장소: 이 섬의 인구는 4,000명이다.",
      "장소: 호수는 산 북쪽에 있다.", "장소: 이 길은 항구로 이어진다.", "장소: 이 골짜기는 포도밭으로 유명하다.",
    ].join("\n"),
  },
};

export let language = "en";
export const say = (word) => WORDS[language][word];
export const hint = (panel) => HINTS[language][panel];

export function change_language() {
  language = language === "en" ? "ko" : "en";
}
