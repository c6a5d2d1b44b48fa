package replay

// wiki is one site that changes come from.
type wiki struct {
	db, domain string
	// weight is the site's share of the groups, in percent.
	weight int
	// patrols says that changes carry "patrolled" and that notify_url names the
	// change's id.
	patrols bool
	// rcBase, revBase and logBase are where the site's numbers begin. Those of
	// the largest sites are past 2^31.
	rcBase, revBase, logBase int64
	// userPrefix begins a user's name.
	userPrefix string
	lang       *language
	// titles says how pages are called.
	titles titleStyle
}

type titleStyle int

const (
	articleTitles titleStyle = iota
	itemTitles               // Q1234567
	fileTitles               // File:… 1234567.jpg
)

// language is the vocabulary of a site's texts.
type language struct {
	category, talk, special string
	words                   []string
	// comments are what editors write.
	comments []string
	// rtl texts carry direction marks.
	rtl bool
}

var wikis = []wiki{
	{"commonswiki", "commons.wikimedia.org", 28, true, 3_010_000_000, 1_130_000_000, 420_000_000, "User-", &english, fileTitles},
	{"wikidatawiki", "www.wikidata.org", 21, true, 2_560_000_000, 2_330_000_000, 910_000_000, "User-", &english, itemTitles},
	{"enwiki", "en.wikipedia.org", 13, false, 2_012_000_000, 1_340_000_000, 176_000_000, "User-", &english, articleTitles},
	{"viwiki", "vi.wikipedia.org", 6, false, 138_000_000, 74_800_000, 52_900_000, "User-", &vietnamese, articleTitles},
	{"ruwiki", "ru.wikipedia.org", 5, true, 512_000_000, 151_000_000, 99_000_000, "Участник-", &russian, articleTitles},
	{"zhwiki", "zh.wikipedia.org", 4, true, 237_000_000, 91_000_000, 22_000_000, "用户-", &chinese, articleTitles},
	{"dewiki", "de.wikipedia.org", 4, true, 403_000_000, 262_000_000, 138_000_000, "Benutzer-", &german, articleTitles},
	{"frwiki", "fr.wikipedia.org", 4, true, 648_000_000, 233_000_000, 41_000_000, "User-", &french, articleTitles},
	{"eswiki", "es.wikipedia.org", 3, true, 371_000_000, 171_000_000, 24_000_000, "User-", &spanish, articleTitles},
	{"itwiki", "it.wikipedia.org", 3, true, 288_000_000, 147_000_000, 19_000_000, "Utente-", &italian, articleTitles},
	{"arwiki", "ar.wikipedia.org", 3, true, 159_000_000, 72_000_000, 17_000_000, "مستخدم-", &arabic, articleTitles},
	{"fawiki", "fa.wikipedia.org", 2, true, 104_000_000, 43_000_000, 22_500_000, "کاربر-", &persian, articleTitles},
	{"hewiki", "he.wikipedia.org", 2, true, 91_000_000, 42_000_000, 17_200_000, "משתמש-", &hebrew, articleTitles},
	{"jawiki", "ja.wikipedia.org", 2, false, 249_000_000, 107_000_000, 9_000_000, "利用者-", &japanese, articleTitles},
}

var english = language{
	category: "Category", talk: "User talk", special: "Special",
	words: []string{"River", "railway station", "Old Town", "football club", "1987", "botanical garden", "lighthouse", "County", "film", "bridge", "Cathedral", "list of", "North", "valley", "museum", "Upper", "harbour", "elections"},
	comments: []string{"fixed a broken link", "added a source", "copy edit", "reverted an edit without a source", "updated the table", "typo", "removed a duplicate paragraph",
		"see the talk page", "new section on the later years", "infobox", "per the discussion", "disambiguated", "/* History */ added dates", "moved the image to the right"},
}

var german = language{
	category: "Kategorie", talk: "Benutzer Diskussion", special: "Spezial",
	words:    []string{"Straße", "Bahnhof", "Schlösser", "Fußballverein", "Müller", "Gemeinde", "Kirche", "Flüsse", "Österreich", "Liste der", "Brücke", "Übersee"},
	comments: []string{"Tippfehler korrigiert", "Beleg ergänzt", "Link repariert", "siehe Diskussion", "Abschnitt gekürzt", "Änderung rückgängig gemacht", "Grüße", "Vorlage aktualisiert"},
}

var french = language{
	category: "Catégorie", talk: "Discussion utilisateur", special: "Spécial",
	words:    []string{"Église", "château", "rivière", "élections", "gare", "Saint-Étienne", "forêt", "œuvres", "musée", "île", "département"},
	comments: []string{"ajout d’une référence", "corrigé une faute", "mise à jour", "révocation", "voir la page de discussion", "modèle remplacé", "précision", "typo"},
}

var spanish = language{
	category: "Categoría", talk: "Usuario discusión", special: "Especial",
	words:    []string{"Río", "estación", "Peñón", "montañas", "años", "iglesia", "canción", "pequeño", "biografía", "región"},
	comments: []string{"añadida una referencia", "ortografía", "enlace corregido", "traducción", "revertida la edición", "actualización de datos"},
}

var italian = language{
	category: "Categoria", talk: "Discussioni utente", special: "Speciale",
	words:    []string{"Città", "stazione", "Fiume", "chiesa di", "società", "l'Università", "montagna", "però", "castello"},
	comments: []string{"aggiunta una fonte", "corretto un errore", "annullata la modifica", "sistemato il template", "wikilink"},
}

var vietnamese = language{
	category: "Thể loại", talk: "Thảo luận Thành viên", special: "Đặc biệt",
	words:    []string{"Sông", "huyện", "Thành phố", "trường đại học", "xã", "Nguyễn", "phường", "đường sắt", "Quần đảo"},
	comments: []string{"sửa lỗi chính tả", "thêm nguồn tham khảo", "cập nhật", "lùi sửa", "xóa liên kết hỏng", "dịch từ bản tiếng Anh"},
}

var russian = language{
	category: "Категория", talk: "Обсуждение участника", special: "Служебная",
	words:    []string{"Река", "станция", "посёлок", "футбольный клуб", "Список", "улица", "музей", "область", "озеро", "крепость"},
	comments: []string{"исправлена опечатка", "добавлен источник", "отмена правки", "оформление", "уточнение", "викификация", "обновление данных"},
}

var chinese = language{
	category: "Category", talk: "User talk", special: "Special",
	words:    []string{"車站", "河流", "大学", "歷史", "公园", "列表", "足球俱乐部", "博物館", "县", "電影"},
	comments: []string{"修正錯字", "增加来源", "撤销编辑", "更新資料", "內容擴充", "移除失效链接", "整理"},
}

var japanese = language{
	category: "Category", talk: "利用者‐会話", special: "特別",
	words:    []string{"駅", "川", "大学", "一覧", "城", "映画", "鉄道", "博物館", "スタジアム", "シリーズ"},
	comments: []string{"誤字の修正", "出典の追加", "加筆", "リンク修正", "差し戻し", "カテゴリの変更"},
}

var arabic = language{
	category: "تصنيف", talk: "نقاش المستخدم", special: "خاص", rtl: true,
	words:    []string{"نهر", "محطة", "جامعة", "متحف", "قائمة", "مدينة", "جسر", "بلدة", "نادي"},
	comments: []string{"تصحيح إملائي", "إضافة مصدر", "استرجاع تعديل", "تحديث البيانات", "تنسيق"},
}

var persian = language{
	category: "رده", talk: "بحث کاربر", special: "ویژه", rtl: true,
	words:    []string{"رود", "ایستگاه", "دانشگاه", "موزه", "شهرستان", "ال‌جی‌بی‌تی", "کتاب‌ها", "پل", "می‌دان"},
	comments: []string{"اصلاح املا", "افزودن منبع", "واگردانی", "به‌روزرسانی", "ویکی‌سازی"},
}

var hebrew = language{
	category: "קטגוריה", talk: "שיחת משתמש", special: "מיוחד", rtl: true,
	words:    []string{"נהר", "תחנת רכבת", "אוניברסיטה", "מוזיאון", "רשימת", "גשר", "עיר", "מועדון"},
	comments: []string{"תיקון שגיאת כתיב", "הוספת מקור", "ביטול עריכה", "עדכון", "קישורים"},
}
