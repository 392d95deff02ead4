"""firth serve's application on Ray Serve, with two replicas of one CPU each.

    FIRTH_MODELS="spam=/srv/models/spam" serve run --app-dir deploy ray_serve:application

FIRTH_MODELS: NAME=PATH for each model, separated by blanks, at paths that every node sees. For clients on other
machines also FIRTH_HOST=0.0.0.0, which requires FIRTH_API_KEY, and Ray Serve's own option for the address of its proxy.
"""

import os

from ray import serve
from starlette.types import ASGIApp


def build(models: str, host: str, key: str) -> ASGIApp:
    """In a replica: load the models and start the engine behind the routes."""
    # Imported here because only replicas need torch and the models.
    from firth.serving.access import KEY_VARIABLE, make_access
    from firth.serving.app import make_app
    from firth.serving.config import Limits
    from firth.serving.server import Served, load_models, make_state, named_models

    if key:
        os.environ[KEY_VARIABLE] = key
    access = make_access(host, None, [], no_auth=False)
    served = Served(models=named_models(models.split()), access=access, limits=Limits(), host=host)
    state = make_state(served)
    load_models(served, state)
    state.engine.start()
    state.started = True
    return make_app(state, access)


@serve.deployment(
    num_replicas=2,
    # A replica's engine batches waiting requests and refuses those that would wait too long; Ray Serve only routes.
    max_ongoing_requests=512,
    graceful_shutdown_timeout_s=35,  # accepted requests may take drain_s (30 s) to end
    health_check_period_s=5,
    ray_actor_options={"num_cpus": 1},  # threads of a replica
)
@serve.ingress()
class Firth:
    """A replica."""

    def __init__(self, models: str, host: str, key: str):
        self.given = models, host, key

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return build(*self.given)


# Replicas on other nodes do not see these variables, so the application carries them.
application = Firth.bind(
    os.environ.get("FIRTH_MODELS", ""), os.environ.get("FIRTH_HOST", "127.0.0.1"), os.environ.get("FIRTH_API_KEY", "")
)
