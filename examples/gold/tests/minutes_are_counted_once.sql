select wiki, minute, count(*) as rows
from {{ ref('edits_per_minute') }}
group by 1, 2
having count(*) > 1
