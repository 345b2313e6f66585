"""No part of a JDBC URL is shown that may be secret, whichever database's grammar it has."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.pipelines.definition.addresses.jdbc_names import named_in
from headwater.pipelines.definition.addresses.jdbc_url import JdbcUrl, shown_url
from headwater.pipelines.definition.secret_text import Secrets, SecretText


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("jdbc:postgresql://db:5432/shop", "jdbc:postgresql://db:5432/shop"),
        ("jdbc:postgresql://a:1,b:2/shop?user=u@x&password=PWPW", "jdbc:postgresql://a:1,b:2/shop"),
        ("jdbc:postgresql:shop?user=u&password=PWPW", "jdbc:postgresql:shop"),
        ("jdbc:postgresql://[::1]:5432/shop", "jdbc:postgresql://[::1]:5432/shop"),
        ("jdbc:mysql://u:PW@PW@db/shop", "jdbc:mysql://db/shop"),
        ("jdbc:mysql://u:PW/PW@db/shop", "jdbc:mysql://***"),
        ("jdbc:mysql://(host=db,password=PWPW)/shop", "jdbc:mysql://***"),
        ("jdbc:oracle:thin:scott/PWPW@//db:1521/orcl", "jdbc:oracle:thin:@//db:1521/orcl"),
        ("jdbc:oracle:thin:scott/PWPW@db:1521:orcl", "jdbc:oracle:thin:@db:1521:orcl"),
        ("jdbc:oracle:thin:scott/PW:PW@db", "jdbc:oracle:thin:@db"),
        ('jdbc:oracle:thin:scott/"PW@PW"@db:1521/orcl', "jdbc:oracle:thin:@***"),
        ("jdbc:oracle:thin:scott/PW?PW@db", "jdbc:oracle:thin:@***"),
        ("jdbc:oracle:oci:scott/PWPW@tns", "jdbc:oracle:oci:@tns"),
        (
            "jdbc:oracle:thin:@tcps://db:1522/orcl?oracle.net.wallet_password=PW@PW",
            "jdbc:oracle:thin:@tcps://db:1522/orcl",
        ),
        (
            "jdbc:oracle:thin:scott/PWPW@(DESCRIPTION=(ADDRESS=(HOST=db)(PORT=1521))(CONNECT_DATA=(SERVICE_NAME=orcl)))",
            "jdbc:oracle:thin:@(HOST=db)(PORT=1521)(SERVICE_NAME=orcl)",
        ),
        ("jdbc:sqlserver://db;password={PW;PW}PW", "jdbc:sqlserver://db"),
        (
            "jdbc:sqlserver://db\\one:1433;password={PW;databaseName=PW};databaseName=shop",
            "jdbc:sqlserver://db\\one:1433;databaseName=shop",
        ),
        ("jdbc:sqlserver://db;password={PW}};database=PW};x=1", "jdbc:sqlserver://db"),
        ("jdbc:db2://db:50000/shop:user=u;password=PWPW;", "jdbc:db2://db:50000/shop"),
        ("jdbc:derby:memory:shop;create=true;password=PWPW", "jdbc:derby:memory:shop"),
        ("jdbc:h2:tcp://db/~/shop;USER=sa;PASSWORD=PWPW", "jdbc:h2:tcp://db/~/shop"),
        ("jdbc:teradata://db/DATABASE=x,PASSWORD=PWPW", "jdbc:teradata://db/***"),
        ("jdbc:snowflake://acc/?user=u&password=PWPW&db=shop&schema=a", "jdbc:snowflake://acc/?db=shop&schema=a"),
        ("jdbc:${env:URL}", "jdbc:***"),
        ("${env:URL}", "${env:URL}"),
        ("jdbc:postgresql://${env:HOST}:5432/${env:DB}?password=PWPW", "jdbc:postgresql://${env:HOST}:5432/${env:DB}"),
        ("jdbc:unknown:u:PWPW", "jdbc:unknown:***"),
        ("PWPW", "jdbc:***"),
    ],
)
def test_driver_hosts_and_database_are_shown_and_no_secret(url: str, shown: str) -> None:
    assert shown_url(url) == shown
    assert "PW" not in shown


PASSWORDS = st.text("aP;{}&?/:@,=()\"'% ", min_size=1, max_size=12).map(lambda text: f"{text}ZZSECRETZZ")


@given(PASSWORDS)
def test_no_end_of_a_password_is_shown_whatever_it_holds(password: str) -> None:
    for url in (
        f"jdbc:oracle:thin:scott/{password}@//db:1521/orcl",
        f"jdbc:postgresql://db/shop?user=u&password={password}",
        f"jdbc:mysql://db/shop?password={password}&x=1",
        "jdbc:sqlserver://db;password={" + password.replace("}", "}}") + "};databaseName=shop",
    ):
        assert "SECRET" not in shown_url(url), url
        assert "SECRET" not in (named_in(url) or ""), url


def test_what_a_driver_repeats_of_a_url_is_taken_out_of_its_message() -> None:
    secrets = Secrets({}, lambda _: "")
    url = JdbcUrl.of("jdbc:sqlserver://db;user=sa;password={pass;word}x;encrypt=true", secrets)
    assert "word" not in secrets.redacted(f"No suitable driver found for {url.reveal()}")
    assert "word" not in secrets.redacted("login failed for sa with pass;word")
    JdbcUrl.of("jdbc:oracle:thin:scott/tiger@db", secrets)
    assert "tiger" not in secrets.redacted("ORA-01017: scott/tiger")
    SecretText.of("plainly-written", secrets, is_secret=True)
    assert "plainly" not in secrets.redacted("plainly-written is wrong")


def test_other_texts_hide_a_password_to_its_end() -> None:
    assert str(SecretText.of("x;password={p;w}x")) == "x;password=***"
    assert str(SecretText.of("http://u:p@w@host/x")) == "http://***@host/x"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("jdbc:snowflake://acc/?db=A&schema=S", "jdbc:snowflake://acc/?schema=S&DB=A", True),
        ("jdbc:snowflake://acc/?db=A", "jdbc:snowflake://acc/?db=B", False),
        ("jdbc:snowflake://acc/?db=A&schema=S", "jdbc:snowflake://acc/?db=A&schema=T", False),
        ("jdbc:snowflake://acc/?db=Ä b", "jdbc:snowflake://acc/?db=Ö b", False),
        ("jdbc:snowflake://acc/?db=A&warehouse=small", "jdbc:snowflake://acc/?db=A&warehouse=large", True),
        ("jdbc:postgresql://u:one@db/shop?connectTimeout=5", "jdbc:postgresql://db/shop?user=v&password=two", True),
        ("jdbc:postgresql://db/shop", "jdbc:postgresql://db:5433/shop", False),
        ("jdbc:postgresql://db/shop", "jdbc:postgresql://db/shop?currentSchema=a", False),
        ("jdbc:oracle:thin:scott/tiger@db:1521/orcl", "jdbc:oracle:thin:@db:1521/orcl", True),
        ("jdbc:oracle:thin:@(HOST=db)(SERVICE_NAME=a)", "jdbc:oracle:thin:@(HOST=db)(SERVICE_NAME=b)", False),
        ("jdbc:mysql://(host=a,password=p)/shop", "jdbc:mysql://(host=a,password=q)/shop", True),
        ("jdbc:mysql://(host=a,password=p)/shop", "jdbc:mysql://(host=b,password=p)/shop", False),
        ("jdbc:mysql://(host=a,password=p)/shop", "jdbc:mysql://(host=a,password=p)/other", False),
        ("jdbc:teradata://db/DATABASE=x,PASSWORD=p", "jdbc:teradata://db/DATABASE=x,PASSWORD=q", True),
        ("jdbc:teradata://db/DATABASE=x,PASSWORD=p", "jdbc:teradata://db/DATABASE=y,PASSWORD=p", False),
        ("jdbc:sqlserver://db;password={;database=x};database=a", "jdbc:sqlserver://db;database=a;user=u", True),
        ("jdbc:bigquery://h:443;ProjectId=a;OAuthType=0", "jdbc:bigquery://h:443;ProjectId=b;OAuthType=0", False),
    ],
)
def test_a_database_is_told_by_what_names_it_and_by_nothing_else(one: str, other: str, same: bool) -> None:
    assert (JdbcUrl.of(one).database == JdbcUrl.of(other).database) is same


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("jdbc:redshift:iam://c:us-east-1/dev?user=x", "jdbc:redshift:iam://c:us-east-1/prod?user=x"),
        ("jdbc:postgresql://db/my%20shop", "jdbc:postgresql://db/my%20other"),
        ("jdbc:postgresql://db/größe", "jdbc:postgresql://db/menge_ä"),
        ("jdbc:postgresql://u:p/w@db1/shop", "jdbc:postgresql://u:p/w@db2/shop"),
        ("jdbc:postgresql://u:p/w@db/shop", "jdbc:postgresql://u:p/w@db/other"),
        ("jdbc:sqlite:/data/my shop.db", "jdbc:sqlite:/data/other shop.db"),
        ("jdbc:sqlite:C:\\a\\x.db", "jdbc:sqlite:C:\\a\\y.db"),
        ("jdbc:mysql://(host=a,port=1),(host=b,port=2)/x", "jdbc:mysql://(host=a,port=2),(host=b,port=1)/x"),
        ("jdbc:mysql://address=(host=a)(port=1)/x", "jdbc:mysql://address=(host=b)(port=1)/x"),
        ("jdbc:db2:SAMPLE", "jdbc:db2:OTHER"),
        ("jdbc:db2://h:1/a:currentSchema=x;user=u;", "jdbc:db2://h:1/a:currentSchema=y;user=u;"),
        ("jdbc:as400:h;libraries=a", "jdbc:as400:g;libraries=a"),
        ("jdbc:oracle:thin:@ldap://h:389/a,cn=b", "jdbc:oracle:thin:@ldap://h:389/c,cn=b"),
        ("jdbc:awsathena://AwsRegion=us;Catalog=a", "jdbc:awsathena://AwsRegion=eu;Catalog=a"),
        ("jdbc:ucanaccess:///a/b.mdb", "jdbc:ucanaccess:///a/c.mdb"),
        ("jdbc:firebirdsql:h/3050:/a.fdb", "jdbc:firebirdsql:h/3050:/b.fdb"),
        ("jdbc:phoenix:zk1:2181", "jdbc:phoenix:zk2:2181"),
        ("jdbc:clickhouse:http://h1:8123/a", "jdbc:clickhouse:http://h1:8123/b"),
        ("jdbc:sqlserver://h;database={a;b}", "jdbc:sqlserver://h;database={a;c}"),
        ("jdbc:snowflake://acc/?db=a;schema=b", "jdbc:snowflake://acc/?db=a&schema=b"),
    ],
)
def test_databases_of_other_names_are_others_also_where_the_names_are_not_shown(one: str, other: str) -> None:
    assert named_in(one) is not None
    assert named_in(other) is not None
    assert JdbcUrl.of(one).database != JdbcUrl.of(other).database


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:postgresql://u:{}@db/shop",
        "jdbc:postgresql://db/shop?user=u&password={}",
        "jdbc:mysql://u:{}@(host=db,port=1)/shop",
        "jdbc:mysql://(host=db,port=1,password={})/shop",
        "jdbc:db2://db:1/shop:user=u;password={};",
        "jdbc:teradata://db/DATABASE=x,PASSWORD='{}'",
        "jdbc:oracle:thin:scott/{}@//db:1521/orcl",
        'jdbc:oracle:thin:scott/"{}"@db:1521/orcl',
    ],
)
@pytest.mark.parametrize("password", ["one", "t/wo", "x=y", "12", "p/w/x", "1#2"])
def test_another_password_names_the_same_database(url: str, password: str) -> None:
    named = named_in(url.format("zero"))
    assert named is not None
    assert "zero" not in named
    assert named_in(url.format(password)) == named


@pytest.mark.parametrize(
    "url",
    [
        "jdbc:unknown:u:SECRET",  # no grammar that is known
        "jdbc:unknown:db;password=SECRET",
        "jdbc:sqlite:/a;password=SECRET",
        "jdbc:phoenix:zk:2181:/hbase:SECRET:/file",
        "jdbc:postgresql://u:12/SECRET@db/shop",  # a port, or the begin of a password
        "jdbc:postgresql://u:p/SECRET@db/a@b",
        "jdbc:postgresql://db/a@b",
        "jdbc:postgresql://u:SECRET?x@db/shop",
        "jdbc:postgresql://u:SECRET?x=y@db/shop",
        "jdbc:postgresql://u:SECRET;database=y@db/shop",
        "jdbc:mysql://u:SECRET@a,v:SECRET@b/shop",  # which user is whose
        "jdbc:mysql://(host=a,password=SE(CRET)/shop",
        "jdbc:mysql://u:SE(host=CRET)@(host=b)/shop",
        "jdbc:oracle:thin:scott/SE?CRET@db",
        "jdbc:oracle:thin:scott/SE@CRET@db",
        "jdbc:oracle:thin:scott/SECRET",
        "jdbc:sqlserver://;user=SECRET",
        "jdbc:x://db;password={SE;database=CRET",
        "jdbc:x://db;password={SE;database=CRET}",
        "jdbc:postgresql://***",
        "SECRET",
    ],
)
def test_a_url_that_does_not_tell_its_database_for_sure_has_no_name(url: str) -> None:
    assert named_in(url) is None
    assert JdbcUrl.of(url).database is None
    assert JdbcUrl.of(url).place("t") != JdbcUrl.of(f"{url}x").place("t")


def test_a_database_that_a_secret_names_is_told_by_the_value() -> None:
    text = "jdbc:postgresql://\0env:HOST\0/shop?password=\0env:PW\0"

    def database(**environ: str) -> str | None:
        return JdbcUrl.of(text, Secrets(environ, lambda _: "")).database

    assert (
        database(HOST="db", PW="one")
        == database(HOST="db", PW="two")
        == JdbcUrl.of("jdbc:postgresql://db/shop").database
    )
    assert database(HOST="db", PW="one") != database(HOST="other", PW="one")
    assert database(PW="one") is None


def test_a_reference_without_a_value_is_a_place_of_its_own() -> None:
    def place(text: str) -> tuple[str, str] | None:
        return JdbcUrl.of(text, Secrets({}, lambda _: "")).place("t")

    assert place("\0env:URL\0") == ("jdbc", "${env:URL} t")
    assert place("jdbc:postgresql://\0env:HOST\0:\0file:/p\0/shop") == (
        "jdbc",
        "jdbc:postgresql://${env:HOST}:${file:/p}/shop t",
    )
    assert place("jdbc:\0env:URL\0") is None
