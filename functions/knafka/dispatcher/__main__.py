"""`python -m knafka.dispatcher`: the dispatcher under uvicorn."""

from knafka.dispatcher.function import Dispatcher
from knafka.serving import serve

if __name__ == "__main__":
    serve(Dispatcher())
