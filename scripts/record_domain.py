"""Record the trial of scripts/domain in docs/results/domain.json.

.venv/bin/python scripts/record_domain.py runs/domain
"""

import sys
from pathlib import Path

from recorded import made_on

from firth.config import read_json
from firth.files import write_json
from firth.training.log import read_log

OUT = Path("docs/results/domain.json")


def main(folder: Path) -> None:
    evaluations = [event for event in read_log(folder / "run" / "log.jsonl") if event["event"] == "dev"]
    tuned = {
        name: read_json(folder / f"tuned-{place}" / "results.json")
        for name, place in (("before", "bert-mini"), ("after", "run"))
    }
    write_json(
        OUT,
        {
            "extend": read_json(folder / "extend.json"),
            "evaluations": [{key: value for key, value in one.items() if key != "event"} for one in evaluations],
            "tuned": {
                name: {key: facts[key] for key in ("metric", "examples", "dev")} for name, facts in tuned.items()
            },
            **made_on(),
        },
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
