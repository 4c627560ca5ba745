"""The receiver: a CloudEvent over HTTP becomes a record in the Broker's topic, then 202 (BRK-10).

    answers     what a receiver says, ready for the wire
    ingest      what a request means and what becomes of it; knows no server
    protocol    HTTP/1.1 on llhttp under uvicorn: the fast way in
    responses   its answers, in the order of the requests
    function    the same as an ASGI function: functions-framework and func
    __main__    `python -m knafka.receiver`: the function under the fast server

It refuses to filter, to change data, and to answer 202 before Kafka has.
"""
