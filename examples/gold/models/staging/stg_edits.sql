-- Edits as the marts count them: nothing is left out, nulls that are keys get a
-- name.
select
    event_id,
    event_time,
    date_trunc('minute', event_time) as minute,
    type,
    coalesce(wiki, 'unknown') as wiki,
    coalesce(title, '') as title,
    coalesce("user", 'unknown') as editor,
    coalesce(bot, false) as bot,
    coalesce(length_new, 0) - coalesce(length_old, 0) as bytes_changed,
    processed_at
from {{ source('silver', 'edits') }}
