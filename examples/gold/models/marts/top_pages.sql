-- The most edited pages of each wiki; among equals the title decides, so that
-- the table is the same whoever counts.
with by_editor as (
    select
        wiki,
        title,
        editor,
        count(*) as edits,
        max(event_time) as last_edit
    from {{ ref('stg_edits') }}
    group by wiki, title, editor
),

counted as (
    select
        wiki,
        title,
        cast(sum(edits) as bigint) as edits,
        count(*) as editors,
        max(last_edit) as last_edit
    from by_editor
    group by wiki, title
)

select
    wiki,
    cast(row_number() over (partition by wiki order by edits desc, title) as integer) as rank,
    title,
    edits,
    editors,
    last_edit
from counted
qualify rank <= {{ var('pages_per_wiki') }}
