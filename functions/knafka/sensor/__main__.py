"""`python -m knafka.sensor`: the sensor under uvicorn."""

from knafka.sensor.function import SensorFunction
from knafka.serving import serve

if __name__ == "__main__":
    serve(SensorFunction())
