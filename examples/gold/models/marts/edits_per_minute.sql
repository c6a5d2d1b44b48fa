-- Edits per wiki and minute. An incremental run counts those minutes anew in
-- which something was committed since.
{{ config(materialized='incremental', unique_key=['wiki', 'minute'], incremental_strategy='delete+insert') }}

with changed as (
    select distinct wiki, minute
    from {{ ref('stg_edits') }}
    {% if is_incremental() %}
    where processed_at >= (
        select coalesce(max(last_processed_at) - interval '{{ var("lookback_minutes") }} minutes', timestamptz '1970-01-01 00:00:00+00')
        from {{ this }}
    )
    {% endif %}
),

by_editor as (
    select
        e.wiki,
        e.minute,
        e.editor,
        count(*) as edits,
        count(*) filter (where e.bot) as bot_edits,
        sum(e.bytes_changed) as bytes_changed,
        max(e.processed_at) as last_processed_at
    from {{ ref('stg_edits') }} as e
    join changed as c on e.wiki = c.wiki and e.minute = c.minute
    group by e.wiki, e.minute, e.editor
)

select
    wiki,
    minute,
    cast(sum(edits) as bigint) as edits,
    cast(sum(bot_edits) as bigint) as bot_edits,
    count(*) as editors,
    cast(sum(bytes_changed) as bigint) as bytes_changed,
    max(last_processed_at) as last_processed_at
from by_editor
group by wiki, minute
