"""``firth models``."""

from firth.cli.shared import JsonFlag, print_json, print_table
from firth.names import BASELINE_NAMES, HUB, PUBLISHED, SHIPPED, WEIGHTS


def models(*, as_json: JsonFlag = False) -> None:
    """List the names that --model takes: shipped models, baselines, sizes, and how to get published models.

    Example: firth models

    Parameters
    ----------
    as_json
        Print the lists as one JSON object.
    """
    from firth.systems import SIZES, count_parameters

    shipped = {name: (WEIGHTS / name / "firth.json").is_file() for name in SHIPPED}
    parameters = {name: count_parameters(name) for name in SIZES}
    if as_json:
        print_json(
            {
                "shipped": [{"name": name, "about": SHIPPED[name], "here": here} for name, here in shipped.items()],
                "baselines": [{"name": name, "about": about} for name, about in BASELINE_NAMES.items()],
                "sizes": [{"name": name, "system": SIZES[name][0], "parameters": n} for name, n in parameters.items()],
                "published": {name: f"{HUB}{full}" for name, full in PUBLISHED.items()},
            }
        )
        return
    print("a folder: of a run, or of any tool that firth convert reads")
    print("shipped, with weights:")
    absent = "not in this installation: a clone builds it with make models"
    print_table([(name, SHIPPED[name] if here else f"{SHIPPED[name]}; {absent}") for name, here in shipped.items()])
    print("baselines, to fine-tune without an encoder:")
    print_table(list(BASELINE_NAMES.items()))
    print("sizes, to train from scratch (parameters with 30,000 tokens of vocabulary):")
    print_table([(name, f"{n / 1e6:6.1f} M") for name, n in parameters.items()])
    print(f"published, from the Hugging Face hub (extra hub), any as {HUB}ORGANISATION/NAME, such as:")
    print_table([(name, f"{HUB}{full}") for name, full in PUBLISHED.items()])
