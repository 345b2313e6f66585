"""Sessions: a user's page views with little time between them, by session windows and a watermark."""

from __future__ import annotations

from typing import Final

from headwater.pipelines.starters.template import SampleRecords, Template

_PIPELINE: Final = """\
# Sessions of a web site's users: page views with less than half an hour between them, published by user and kept.
# Every field: docs/reference/pipeline_yaml.md.
#
#   headwater pipeline validate @FILE@      mistakes, without Spark or a broker
#   headwater pipeline test @FILE@          the tests at the end of this file
#   headwater pipeline plan @FILE@          what a run would do
#   headwater pipeline run @FILE@           process what there is; --continuous goes on for ever
pipeline: @NAME@

variables:                # give others with --set NAME=VALUE
  lake: lake              # folder of the Delta tables

topics:                   # created when they do not exist
  @NAME@_page_views: {partitions: 3, value: json, schema: schemas/page_view.json}
  @NAME@_sessions:   {partitions: 3, value: json}   # no schema: the columns are those of the stage that writes it

stages:
  - name: sessions
    # The watermark is the latest event time that was read, less the delay. A session is written once the watermark has
    # passed its end, half an hour after its last view; Spark drops views that are older than the watermark. A longer
    # delay waits for late views, and writes later.
    from: {topic: @NAME@_page_views, as: views, watermark: {column: viewed_at, delay: 10 minutes}}
    steps:                # each step reads the rows of the one before from `input`; the first may say `views`, too
      - deduplicate: {by: [view_id]}        # a browser that got no answer sends the view again
      - sql: |
          SELECT session_window(viewed_at, '30 minutes') AS session, user_id,
                 count(*) AS pages, min_by(page, viewed_at) AS first_page, max_by(page, viewed_at) AS last_page
          FROM input
          GROUP BY session_window(viewed_at, '30 minutes'), user_id
      - sql: |
          SELECT user_id, session.start AS started_at, session.end AS ended_at, pages, first_page, last_page
          FROM input
    to:
      # A record has the time of its writing. With `timestamp: ended_at`, retention would delete old sessions at once.
      - {topic: @NAME@_sessions, key: user_id}
      - {delta: "${lake}/sessions", partition_by: [to_date(started_at) AS day]}

tests:
  - name: views_with_little_time_between_them_are_a_session
    stage: sessions
    given:
      views:
        - {view_id: v1, user_id: ann, page: /, viewed_at: "2026-01-01T10:00:00Z"}
        - {view_id: v1, user_id: ann, page: /, viewed_at: "2026-01-01T10:00:00Z"}         # sent twice, counted once
        - {view_id: v2, user_id: ann, page: /shoes, viewed_at: "2026-01-01T10:20:00Z"}
        - {view_id: v3, user_id: ann, page: /, viewed_at: "2026-01-01T12:00:00Z"}         # a new session
        - {view_id: v4, user_id: bob, page: /hats, viewed_at: "2026-01-01T10:05:00Z"}
        - {_watermark: "2026-01-01T13:00:00Z"}                                            # time passes
    expect:
      - {user_id: ann, started_at: "2026-01-01T10:00:00Z", ended_at: "2026-01-01T10:50:00Z",
         pages: 2, first_page: /, last_page: /shoes}
      - {user_id: ann, started_at: "2026-01-01T12:00:00Z", pages: 1}
      - {user_id: bob, started_at: "2026-01-01T10:05:00Z", pages: 1, last_page: /hats}
  - name: a_session_is_open_until_the_watermark_has_passed_its_end
    stage: sessions
    given:
      views:
        - {view_id: v1, user_id: ann, page: /, viewed_at: "2026-01-01T10:00:00Z"}
        - {_watermark: "2026-01-01T10:20:00Z"}
        - {view_id: v2, user_id: ann, page: /shoes, viewed_at: "2026-01-01T10:29:00Z"}
        - {view_id: v3, user_id: bob, page: /, viewed_at: "2026-01-01T11:00:00Z"}
    expect: []            # ann's session may go on until 10:59, and the watermark is 10:50
"""

_PAGE_VIEW: Final = """\
{
  "type": "object",
  "required": ["view_id", "user_id", "viewed_at"],
  "properties": {
    "view_id": {"type": "string"},
    "user_id": {"type": "string"},
    "page": {"type": ["string", "null"]},
    "viewed_at": {"type": "string", "format": "date-time"}
  }
}
"""

_VIEWS: Final = """\
{"view_id": "v1", "user_id": "ann", "page": "/", "viewed_at": "2026-01-01T10:00:00Z"}
{"view_id": "v2", "user_id": "bob", "page": "/hats", "viewed_at": "2026-01-01T10:05:00Z"}
{"view_id": "v3", "user_id": "ann", "page": "/shoes", "viewed_at": "2026-01-01T10:20:00Z"}
{"view_id": "v3", "user_id": "ann", "page": "/shoes", "viewed_at": "2026-01-01T10:20:00Z"}
{"view_id": "v4", "user_id": "ann", "page": "/", "viewed_at": "2026-01-01T12:00:00Z"}
{"view_id": "v5", "user_id": "bob", "page": "/", "viewed_at": "2026-01-01T18:00:00Z"}
"""

SESSIONS: Final = Template(
    summary="page views as sessions, by session windows and a watermark",
    pipeline=_PIPELINE,
    files={"schemas/page_view.json": _PAGE_VIEW},
    samples=(SampleRecords("@NAME@_page_views", "sample/page_views.jsonl", _VIEWS),),
    query="SELECT user_id, started_at, ended_at, pages FROM `@NAME@_sessions` ORDER BY started_at",
)
