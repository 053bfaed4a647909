"""The settings of a session; importing the package does not import PySpark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stratalog.errors import ConfigError
from stratalog.spark.session import settings_for

PUSH_DOWN = "spark.sql.python.filterPushdown.enabled"


def test_local_session_listens_on_loopback_only() -> None:
    assert settings_for(None, {})["spark.driver.bindAddress"] == "127.0.0.1"
    assert "spark.driver.bindAddress" not in settings_for("spark://master:7077", {})


def test_setting_of_the_caller_takes_precedence() -> None:
    assert settings_for(None, {})[PUSH_DOWN] == "true"
    assert settings_for(None, {PUSH_DOWN: False})[PUSH_DOWN] == "false"


def test_java_options_of_the_caller_are_kept() -> None:
    options = settings_for(None, {"spark.driver.extraJavaOptions": "-Da=b"})["spark.driver.extraJavaOptions"]
    assert options.startswith("-Da=b -Dlog4j2.configurationFile=")


def test_setting_without_the_spark_prefix_is_refused() -> None:
    with pytest.raises(ConfigError, match="memory is not a setting of Spark"):
        settings_for(None, {"memory": "4g"})


def test_import_brings_no_pyspark() -> None:
    code = "import sys, stratalog.spark, stratalog.spark.session; assert callable(stratalog.spark.session); "
    code += "assert 'pyspark' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_missing_pyspark_error_says_what_to_install() -> None:
    code = "import sys; sys.modules['pyspark'] = None\nfrom stratalog.spark import session\nsession()"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'stratalog[spark]'" in ran.stderr.splitlines()[-1]
