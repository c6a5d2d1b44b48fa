-- What each editor did, and in how many sessions where the pipeline has them.
-- Grouped in steps, by page, by wiki, by editor: distinct pages and wikis are then
-- counts of rows, which needs a fraction of the memory of count(distinct).
with pages as (
    select
        editor,
        wiki,
        title,
        bool_or(bot) as bot,
        count(*) as edits,
        sum(bytes_changed) as bytes_changed,
        min(event_time) as first_edit,
        max(event_time) as last_edit
    from {{ ref('stg_edits') }}
    group by editor, wiki, title
),

wikis as (
    select
        editor,
        wiki,
        bool_or(bot) as bot,
        sum(edits) as edits,
        count(*) as pages,
        sum(bytes_changed) as bytes_changed,
        min(first_edit) as first_edit,
        max(last_edit) as last_edit
    from pages
    group by editor, wiki
),

edits as (
    select
        editor,
        bool_or(bot) as bot,
        cast(sum(edits) as bigint) as edits,
        count(*) as wikis,
        cast(sum(pages) as bigint) as pages,
        cast(sum(bytes_changed) as bigint) as bytes_changed,
        min(first_edit) as first_edit,
        max(last_edit) as last_edit
    from wikis
    group by editor
),

sessions as (
    select coalesce("user", 'unknown') as editor, count(*) as sessions
    from {{ source('silver', 'editor_sessions') }}
    group by 1
)

select e.*, coalesce(s.sessions, 0) as sessions
from edits as e
left join sessions as s on e.editor = s.editor
