"""`python -m knafka.receiver`: the receiver under uvicorn, with its own HTTP protocol, which is
faster."""

from knafka.receiver.function import ReceiverFunction
from knafka.receiver.protocol import EncryptedReceiverProtocol, ReceiverProtocol
from knafka.serving import serve

if __name__ == "__main__":
    serve(ReceiverFunction(), protocol=ReceiverProtocol, tls_protocol=EncryptedReceiverProtocol)
