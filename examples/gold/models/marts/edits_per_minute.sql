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
)

select
    e.wiki,
    e.minute,
    count(*) as edits,
    count(*) filter (where e.bot) as bot_edits,
    count(distinct e.editor) as editors,
    cast(sum(e.bytes_changed) as bigint) as bytes_changed,
    max(e.processed_at) as last_processed_at
from {{ ref('stg_edits') }} as e
join changed as c on e.wiki = c.wiki and e.minute = c.minute
group by e.wiki, e.minute
