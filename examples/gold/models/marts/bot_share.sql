-- The share of bots by wiki and hour.
select
    wiki,
    date_trunc('hour', minute) as hour,
    cast(sum(edits) as bigint) as edits,
    cast(sum(bot_edits) as bigint) as bot_edits,
    sum(bot_edits) / sum(edits) as bot_share
from {{ ref('edits_per_minute') }}
group by 1, 2
