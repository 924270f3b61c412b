SELECT c.oid, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = 'shop' AND c.relname = 'orders';

SELECT a.attname, format_type(a.atttypid, a.atttypmod), NOT a.attnotnull, d.description, pg_get_expr(f.adbin, f.adrelid)
  FROM pg_attribute a
  LEFT JOIN pg_description d ON d.classoid = 1259 AND d.objoid = a.attrelid AND d.objsubid = a.attnum
  LEFT JOIN pg_attrdef f ON f.adrelid = a.attrelid AND f.adnum = a.attnum
 WHERE a.attrelid = 7 AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum;

BEGIN;

SELECT (min(t."at") AT TIME ZONE 'UTC')::text FROM "shop"."orders" t WHERE 1 = 1;

SELECT b, count(*), sum(h) FROM (SELECT CASE WHEN t."id" < 0 THEN -1 WHEN t."id" >= 1000 THEN 100 ELSE ((t."id"::bigint - (0)) / 10) END AS b, ((715827859 + COALESCE(((extract(epoch FROM date_trunc('second', t."at"))::bigint * 1000000 + mod(extract(microseconds FROM t."at")::bigint, 1000000)) - 946684800000000), -4611686018427387847) % 2147483579 * 197641243 + strtol(left(md5(COALESCE(t."name", '')), 8), 16) * 256203161) % 2147483579) * ((t."id"::bigint % 2147483579 + 197641243) * (t."id"::bigint % 2147483579 + 197641243) % 2147483579 * (t."id"::bigint % 2147483579 + 197641243) % 2147483579 + 2147483579) AS h FROM "shop"."orders" t WHERE 1 = 1) q GROUP BY b;

SELECT t."id"::varchar, md5(t."id"::varchar || '' || COALESCE(t."name", '') || '' || COALESCE(lpad(to_hex((extract(epoch FROM date_trunc('second', t."at"))::bigint * 1000000 + mod(extract(microseconds FROM t."at")::bigint, 1000000)) - 946684800000000), 16, '0'), '')) FROM "shop"."orders" t WHERE (((strtol(left(md5(t."id"::varchar), 8), 16) % 16) IN (3, 4))) AND (t."id"::varchar) NOT IN (('1'), ('2'));

