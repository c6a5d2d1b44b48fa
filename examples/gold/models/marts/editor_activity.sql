-- What each editor did, and in how many sessions where the pipeline has them.
with edits as (
    select
        editor,
        bool_or(bot) as bot,
        count(*) as edits,
        count(distinct wiki) as wikis,
        count(distinct wiki || chr(31) || title) as pages,
        cast(sum(bytes_changed) as bigint) as bytes_changed,
        min(event_time) as first_edit,
        max(event_time) as last_edit
    from {{ ref('stg_edits') }}
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
