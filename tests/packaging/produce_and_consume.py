"""A program that needs nothing but an installed Stratalog: a broker, a producer, a consumer, the command line.

With the argument `spark` it also reads the topic with Spark.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from stratalog import Consumer, Producer
from stratalog.testing import BrokerProcess

COUNT = 1000


def main(with_spark: bool) -> None:
    with BrokerProcess() as broker:
        with Producer(broker.bootstrap_servers) as producer:
            for number in range(COUNT):
                producer.send("numbers", b"%d" % number)
        with Consumer(broker.bootstrap_servers, group_id="sum", auto_offset_reset="earliest") as consumer:
            consumer.subscribe(["numbers"])
            received = []
            for record in consumer:
                received.append(int(record.value or b""))
                if len(received) == COUNT:
                    break
        assert received == list(range(COUNT))
        command = [str(Path(sys.executable).with_name("stratalog")), "consume", "numbers", "--count", "3"]
        command += ["--bootstrap-server", broker.bootstrap_servers]
        shown = subprocess.run(command, check=True, capture_output=True, text=True)
        assert shown.stdout.split() == ["0", "1", "2"]
        if with_spark:
            assert spark_sum(broker.bootstrap_servers) == sum(range(COUNT))
    print("all is well")


def spark_sum(servers: str) -> int:
    from stratalog.spark import session

    spark = session()
    options = {"kafka.bootstrap.servers": servers, "subscribe": "numbers"}
    rows = spark.read.format("stratalog").options(**options).load()
    ((total,),) = rows.selectExpr("sum(int(string(value)))").collect()
    spark.stop()
    return int(total)


if __name__ == "__main__":
    main("spark" in sys.argv[1:])
