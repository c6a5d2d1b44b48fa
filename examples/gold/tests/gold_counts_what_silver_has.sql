-- Every edit of silver is in the marts, once.
select silver.n as silver, minutes.n as minutes, editors.n as editors, hours.n as hours
from
    (select count(*) as n from {{ source('silver', 'edits') }}) as silver,
    (select coalesce(sum(edits), 0) as n from {{ ref('edits_per_minute') }}) as minutes,
    (select coalesce(sum(edits), 0) as n from {{ ref('editor_activity') }}) as editors,
    (select coalesce(sum(edits), 0) as n from {{ ref('bot_share') }}) as hours
where silver.n <> minutes.n or silver.n <> editors.n or silver.n <> hours.n
